"""Opens clients of AWS with settings for long polls."""

import os
from collections.abc import Mapping
from typing import Any

import boto3
from botocore.config import Config

from weakincentives.runtime.mailbox.seam.step_threads import STEP_THREADS

from .errors import Place, translated

__all__ = ["Connections", "open_clients", "prepare"]

# Above the twenty seconds of a long poll, and a connection for each poll and a few. Not adaptive:
# that slows down all calls of a client when AWS throttles one queue of it.
CLIENT = Config(
    retries={"mode": "standard", "max_attempts": 6},
    connect_timeout=5,
    read_timeout=30,
    max_pool_connections=50,
)


class Connections:
    """The connections of a client, which only the process that has opened them may use."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._pid = os.getpid()

    def before_call(self, **_: Any) -> None:
        """Forget the connections of the parent, in a forked child; botocore calls this."""
        if self._pid != os.getpid():
            # Not when it forks: a thread of the parent may just have taken a lock of the pool, and
            # most children never call.
            self._client.close()
            self._pid = os.getpid()


def prepare(client: Any) -> None:
    """Let forked children use the client, and event loops make a call for each connection."""
    STEP_THREADS.allow(client, getattr(client.meta.config, "max_pool_connections", 0))
    before_call = Connections(client).before_call
    client.meta.events.register("before-send", before_call, unique_id="weakincentives")


def open_clients(
    endpoints: Mapping[str, str | None], region: str | None, profile: str | None = None
) -> list[Any]:
    """Return a client for each service; raise ValueError if an endpoint is not a URL.

    ``profile`` names credentials in AWS's own configuration.
    """
    with translated(Place("account", profile or "default", region)):
        session = boto3.Session(profile_name=profile)
        clients = [
            session.client(service, region_name=region, endpoint_url=endpoint, config=CLIENT)
            for service, endpoint in endpoints.items()
        ]
    for client in clients:
        prepare(client)
    return clients
