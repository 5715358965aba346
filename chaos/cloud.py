"""An emulator of SQS and DynamoDB for one scenario, and how its clients reach it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from testkit.servers.aws import ENVIRONMENT, MINISTACK, REGION, running
from weakincentives import connect

__all__ = ["Cloud", "emulated"]


class Cloud:
    """Where the emulator listens."""

    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, port: int) -> str:
        """Return what `connect` takes, by way of the emulator's own port or a proxy's."""
        return f"sqs://{REGION}?endpoint=http://127.0.0.1:{port}&create=true&replies=replies"


@contextmanager
def emulated(directory: Path) -> Iterator[Cloud]:
    """Run an emulator that has a table for replies; this process may use it."""
    with (
        running(MINISTACK, directory) as endpoint,
        patch.dict(os.environ, ENVIRONMENT),
    ):
        cloud = Cloud(int(endpoint.rpartition(":")[2]))
        with connect(cloud.url(cloud.port)) as backend:
            backend.reply_store().create_table()  # type: ignore[attr-defined]
        yield cloud
