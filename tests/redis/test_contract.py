"""The contract on every topology, through both kinds of client, on every server that is here."""

from pathlib import Path
from typing import Any

import pytest

from tests.redis import clients
from weakincentives.contrib.mailbox.contract import MailboxContract, ReplyStoreContract
from weakincentives.contrib.mailbox.redis import RedisMailbox, RedisReplyStore

DECODING = {"decode_responses": True}

PLACES = [
    pytest.param(("shared_server", clients.standalone, DECODING), id="standalone"),
    pytest.param(("shared_trio", clients.sentinel, {}), id="sentinel", marks=pytest.mark.full),
    pytest.param(
        ("shared_cluster", clients.cluster, DECODING), id="cluster", marks=pytest.mark.full
    ),
]


class Connected:
    """A client of its own for each test."""

    awaited = False
    driver: Any

    @pytest.fixture(autouse=True, params=PLACES)
    def client(self, request: pytest.FixtureRequest, bench: None, binary: Path) -> Any:
        server, client_of, options = request.param
        self._client = client_of(request.getfixturevalue(server), awaited=self.awaited, **options)
        return self._client

    def clean_up(self) -> None:
        if self.awaited:
            self.driver.run(clients.close(self._client))
        else:
            self._client.close()


class TestRedis(Connected, MailboxContract):
    def make_mailbox(self, name: str, **options: Any) -> RedisMailbox[Any, Any]:
        return RedisMailbox(name, self._client, **options)


class TestAsyncRedis(TestRedis):
    awaited = True
    faces = ("async",)


class TestRedisReplies(Connected, ReplyStoreContract):
    def make_reply_store(self) -> Any:
        return RedisReplyStore(self._client)


class TestAsyncRedisReplies(TestRedisReplies):
    awaited = True
    faces = ("async",)
