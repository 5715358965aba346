"""Every topology of Redis, through both kinds of client."""

from pathlib import Path
from typing import Any, ClassVar

import pytest

from testkit import redis_clients as clients
from weakincentives.contrib.mailbox.redis import RedisMailbox, RedisReplyStore

DECODING = {"decode_responses": True}


class Standalone:
    """A client of its own for each test, of a server that all share."""

    awaited = False
    place = "shared_server"
    client_of = staticmethod(clients.standalone)
    options: ClassVar[dict[str, Any]] = DECODING
    driver: Any

    @pytest.fixture(autouse=True)
    def client(self, request: pytest.FixtureRequest, bench: None, binary: Path) -> Any:
        server = request.getfixturevalue(self.place)
        self._client = self.client_of(server, awaited=self.awaited, **self.options)
        return self._client

    def make_mailbox(self, name: str, **options: Any) -> RedisMailbox[Any, Any]:
        return RedisMailbox(name, self._client, **options)

    def make_reply_store(self) -> Any:
        return RedisReplyStore(self._client)

    def clean_up(self) -> None:
        if self.awaited:
            self.driver.run(clients.close(self._client))
        else:
            self._client.close()


class Sentinel(Standalone):
    place = "shared_trio"
    client_of = staticmethod(clients.sentinel)
    options: ClassVar[dict[str, Any]] = {}


class Cluster(Standalone):
    place = "shared_cluster"
    client_of = staticmethod(clients.cluster)


class Awaited:
    """The client is one of redis.asyncio, so that there is no blocking face."""

    awaited = True
    faces = ("async",)


class AwaitedStandalone(Awaited, Standalone):
    pass


class AwaitedSentinel(Awaited, Sentinel):
    pass


class AwaitedCluster(Awaited, Cluster):
    pass
