"""Opens clients of AWS with settings for long polls."""

from collections.abc import Mapping
from typing import Any

import boto3
from botocore.config import Config

from weakincentives.runtime.mailbox.seam.step_threads import STEP_THREADS

from .errors import Place, translated

__all__ = ["open_clients", "use_step_threads"]

# Above the twenty seconds of a long poll, and a connection for each poll and a few. Not adaptive:
# that slows down all calls of a client when AWS throttles one queue of it.
CLIENT = Config(
    retries={"mode": "standard", "max_attempts": 6},
    connect_timeout=5,
    read_timeout=30,
    max_pool_connections=50,
)


def use_step_threads(client: Any) -> None:
    """Let event loops make as many calls at once as the client has connections for."""
    STEP_THREADS.allow(client, getattr(client.meta.config, "max_pool_connections", 0))


def open_clients(
    endpoints: Mapping[str, str | None], region: str | None, profile: str | None = None
) -> list[Any]:
    """Return a client for each service; raise ValueError if an endpoint is not a URL.

    ``profile`` names credentials in AWS's own configuration.
    """
    with translated(Place("account", profile or "default", region)):
        session = boto3.Session(profile_name=profile)
        return [
            session.client(service, region_name=region, endpoint_url=endpoint, config=CLIENT)
            for service, endpoint in endpoints.items()
        ]
