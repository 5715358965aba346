"""Names and addresses of queues, checked before they reach AWS."""

import re
from typing import Any
from urllib.parse import urlsplit

from weakincentives.runtime.mailbox.errors import InvalidParameterError

from .errors import Place, translated

__all__ = ["check_queue_name", "find_queue", "queue_name", "url_region"]

QUEUE_NAME = re.compile(r"(?=.{1,80}\Z)[A-Za-z0-9_-]+(?:\.fifo)?")
AWS_HOST = re.compile(
    r"(?:sqs|queue)(?:-fips)?\.([a-z0-9-]+)\.(?:amazonaws|api)\.|"
    r"([a-z0-9-]+)\.queue\.amazonaws\."
)


def queue_name(queue_url: object) -> str:
    """Return the name of the queue in a queue's URL."""
    parts = urlsplit(queue_url) if isinstance(queue_url, str) else None
    name = parts.path.rpartition("/")[2] if parts else ""
    if parts is None or parts.scheme not in ("http", "https") or not QUEUE_NAME.fullmatch(name):
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


def find_queue(client: Any, name: str, prefix: str = "") -> str:
    """Ask SQS for the URL of a queue."""
    queue = check_queue_name(name, prefix)
    with translated(Place("queue", queue, client.meta.region_name)):
        return client.get_queue_url(QueueName=queue)["QueueUrl"]  # type: ignore[no-any-return]
