"""The props of the blocks: servers, workers, and the names that the documents take for granted."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

import pytest

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.runtime.mailbox import FakeMailbox, InMemoryMailbox, Message

T = TypeVar("T")
R = TypeVar("R")

DEADLINE = 60.0


class Stage:
    """What one block is given: it dies with the test."""

    def __init__(
        self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.request = request
        self.monkeypatch = monkeypatch
        self.tmp_path = tmp_path
        self.namespace: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []
        self._closing: list[Callable[[], object]] = []

    def serve(
        self, mailbox: Any, answer: Callable[[Any], Any], count: int, settle: str = "reply"
    ) -> None:
        """Let a worker of its own answer ``count`` messages."""

        def work() -> None:
            deadline, done = time.monotonic() + DEADLINE, 0
            while done < count and time.monotonic() < deadline:
                for message in mailbox.receive(wait_time_seconds=1):
                    if settle == "reply" and (message.expects_reply() or message.reply_to):
                        message.reply(answer(message.body))
                    message.acknowledge()
                    done += 1

        self.background(work)

    def background(self, work: Callable[[], object]) -> None:
        """Run something beside the block; joined when the test ends."""
        thread = threading.Thread(target=work, daemon=True)
        self._threads.append(thread)
        thread.start()

    def later(self, close: Callable[[], object]) -> None:
        """Close something when the test ends."""
        self._closing.append(close)

    def redis_class(self) -> Any:
        """A Redis class whose objects reach the test server, whatever host they are told."""
        from redis import Redis
        from redis.connection import parse_url

        where = parse_url(self.request.getfixturevalue("redis_url"))
        closing = self.later

        class LocalRedis(Redis):
            def __init__(self, host: str = "", port: int = 0, **options: Any) -> None:
                super().__init__(host=where["host"], port=where["port"], **options)
                closing(self.close)

        LocalRedis().flushall()
        return LocalRedis

    def redis(self) -> Any:
        """A client of the test server, and ``redis.Redis`` in its place for imports to find."""
        import redis
        import redis.cluster

        local = self.redis_class()
        self.monkeypatch.setattr(redis, "Redis", local)
        self.monkeypatch.setattr(redis.cluster, "RedisCluster", type("Local", (local,), {}))
        return local()

    def close(self) -> None:
        """End what was started."""
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive(), "a worker of the block never ended"
        for close in reversed(self._closing):
            close()


class Box(InMemoryMailbox[Any, Any]):
    """A mailbox in memory with messages in it, which remembers what became of them."""

    def __init__(self, *bodies: Any, reply_to: Any = None, name: str = "requests") -> None:
        super().__init__(name)
        for body in bodies:
            self.send(body, reply_to=reply_to)

    def bodies(self) -> list[Any]:
        """What waits to be received."""
        return [seen.body for seen in self.peek(1000)]


def fake(*bodies: Any, reply_to: Any = None) -> FakeMailbox[Any, Any]:
    """A mailbox whose time moves by hand."""
    box: FakeMailbox[Any, Any] = FakeMailbox("requests")
    for body in bodies:
        box.send(body, reply_to=reply_to)
    return box


def delivered(body: Any, times: int, reply_to: Any = None) -> tuple[Box, Message[Any, Any]]:
    """A message that is received for the n-th time."""
    box = Box(body, reply_to=reply_to)
    for _ in range(times - 1):
        box.receive()[0].nack()
    return box, box.receive()[0]


class Log:
    """A logger that takes keywords, as the documents use one."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, str, dict[str, Any]]] = []

    def __getattr__(self, level: str) -> Callable[..., None]:
        return lambda event, **details: self.entries.append((level, event, details))

    @property
    def events(self) -> list[str]:
        return [event for _, event, _ in self.entries]


class Event:
    """Takes whatever the documents give it, an ellipsis too."""

    def __init__(self, *args: Any, **attributes: Any) -> None:
        vars(self).update(attributes)


@FrozenDataclass()
class MyRequest:
    text: Any = ""
    priority: str = "high"


@FrozenDataclass()
class MyOutput:
    text: str = ""


@dataclass(frozen=True)
class Request(Generic[T]):
    """Stands for MainLoopRequest where a block needs no more of it."""

    request: T
    request_id: UUID = field(default_factory=uuid4)


@FrozenDataclass()
class Result(Generic[T]):
    """Stands for MainLoopResult, with what either generation of it had."""

    request_id: UUID
    output: T | None = None
    response: Any = None
    error: str | None = None
    session_id: UUID | None = None


@dataclass(frozen=True)
class Letter(Generic[T]):
    """Stands for DeadLetter where a block needs no more of it."""

    message_id: str
    body: T
    source_mailbox: str = "requests"
    delivery_count: int = 5
    last_error: str = "boom"
    last_error_type: str = "builtins.TimeoutError"
    dead_lettered_at: Any = None
    first_received_at: Any = None
    request_id: UUID | None = None
    reply_to: str | None = None


def stand_in(name: str) -> Any:
    """A generic class that is only ever named in an annotation."""
    return type(name, (), {"__class_getitem__": classmethod(lambda cls, _: cls)})


def counted(values: Iterable[Any], last: BaseException) -> Callable[..., Any]:
    """A function that returns or raises these one after the other, then raises ``last``."""
    rest = iter([*values, last])

    def call(*args: Any, **options: Any) -> Any:
        value = next(rest)
        if isinstance(value, BaseException):
            raise value
        return value

    return call
