"""Names and addresses of queues, checked before they reach AWS."""

import re
from typing import Any
from urllib.parse import urlsplit

from weakincentives.runtime.mailbox.errors import InvalidParameterError

from .errors import Place, translated

__all__ = ["QueueUrls", "check_queue_name", "queue_name", "url_region"]

QUEUE_NAME = re.compile(r"(?=.{1,80}\Z)[A-Za-z0-9_-]+(?:\.fifo)?")
AWS_HOST = re.compile(
    r"(?:sqs|queue)(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws|api)\.|"
    r"([a-z0-9-]+)\.queue\.amazonaws\."
)


def queue_name(queue_url: object) -> str:
    """Return the name of the queue in a queue's URL."""
    try:
        parts = urlsplit(queue_url if isinstance(queue_url, str) else "")
    except ValueError:  # an address in brackets that is not one
        parts = urlsplit("")
    name = parts.path.rpartition("/")[2]
    if parts.scheme not in ("http", "https") or not QUEUE_NAME.fullmatch(name):
        raise InvalidParameterError(
            f"queue_url must be the URL of an SQS queue, not {queue_url!r:.200}"
        )
    return name


def check_queue_name(value: object, prefix: str = "") -> str:
    """Check the name of a queue, before it reaches AWS, and return it with its prefix."""
    if not isinstance(value, str) or not QUEUE_NAME.fullmatch(prefix + value) or not value:
        room = 80 - len(prefix)
        raise InvalidParameterError(
            f"name must be 1 to {room} characters of A-Z a-z 0-9 _ -, with .fifo at the end for a "
            f"FIFO queue, not {value!r:.100}"
        )
    return prefix + value


def url_region(queue_url: str) -> str | None:
    """Return the region that a queue's URL names, if it names one."""
    found = AWS_HOST.match(urlsplit(queue_url).hostname or "")
    return (found[1] or found[2]) if found else None


class QueueUrls:
    """The URLs of queues by their names, each asked for once; ``prefix`` goes before a name."""

    def __init__(self, client: Any, prefix: str = "") -> None:
        self._client = client
        self._prefix = prefix
        self._known: dict[str, str] = {}

    def find(self, name: str) -> str:
        """Return the URL of a queue, which must exist."""
        queue = check_queue_name(name, self._prefix)
        if queue not in self._known:
            with translated(Place("queue", queue, self._client.meta.region_name)):
                self._known[queue] = self._client.get_queue_url(QueueName=queue)["QueueUrl"]
        return self._known[queue]

    def forget(self, name: str) -> None:
        """Ask for the URL of a queue again, because the queue was deleted."""
        self._known.pop(check_queue_name(name, self._prefix), None)
