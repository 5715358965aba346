"""The hooks that a backend overrides, and the helpers that the contract's tests use."""

import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

import pytest

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.envelope import CheckedSealer, JsonSealer, ObjectSealer
from weakincentives.runtime.mailbox.errors import (
    ReceiptHandleExpiredError,
    UnsupportedOperationError,
)

from .driver import DEADLINE, Driver, Face, Proxy

__all__ = ["LONG", "ContractBase", "Harness", "async_only", "refused", "unique_name"]

F = TypeVar("F", bound=Callable[..., None])

LONG = 60
"""A lease in seconds that is longer than any test."""


def unique_name() -> str:
    """Return a queue name that was never used before."""
    return f"contract-{new_id().replace('_', '-')}"


def refused() -> Any:
    """Expect that settling is refused because the lease is over."""
    return pytest.raises(ReceiptHandleExpiredError)


def async_only(test: F) -> F:
    """Run a test only with async calls, for instance because it cancels a task."""
    test.async_only = True  # type: ignore[attr-defined]
    return test


class ContractBase:
    """The part of the contract that mailboxes and reply stores share."""

    faces: ClassVar[tuple[Face, ...]] = ("sync", "async")
    """The kinds of calls that are tested; only ``("async",)`` for an asyncio client."""
    moment: ClassVar[float] = 0.25
    """The shortest time in seconds that the backend can measure; 1 if it knows only whole ones."""

    patience: ClassVar[float] = DEADLINE / 2
    """How many seconds to wait for something that must happen; generous for slow machines."""
    fake_clock: ClassVar[bool] = False
    """Whether `elapse` moves a fake clock, so that tests of minutes take no time."""

    driver: Driver

    def elapse(self, seconds: float) -> None:
        """Let time pass on the backend's clock; override this if the clock is a fake."""
        time.sleep(seconds * 1.1 + 0.02)

    def needs_fake_clock(self) -> None:
        """Skip a test that would take minutes, unless the clock is a fake."""
        if not self.fake_clock:
            pytest.skip("takes minutes: only with fake_clock = True")

    def clean_up(self) -> None:
        """Close connections and files; use `driver.run` for coroutines."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if getattr(metafunc.function, "async_only", False):
            metafunc.parametrize("face", [face for face in self.faces if face == "async"])
        elif "face" in metafunc.fixturenames:
            metafunc.parametrize("face", self.faces)

    @pytest.fixture(autouse=True)
    def bench(self, face: Face) -> Iterator[None]:
        self.driver = Driver(face)
        try:
            yield
            self.close_all()
        finally:
            try:
                self.driver.cancel_rest()
                self.clean_up()
            finally:
                self.driver.close()

    def close_all(self) -> None:
        """Close everything that the test opened."""


class Harness(ContractBase):
    """The hooks of a backend, and helpers that work with every backend."""

    model_expiry: ClassVar[bool] = False
    """Whether leases run out in the state machine even though that takes real time."""
    model_examples: ClassVar[int] = 20
    """How many random programs the state machine runs."""

    _opened: list[Proxy]

    def make_mailbox(self, name: str, **options: Any) -> Any:
        """Return a new mailbox.

        The options are any of ``body_type``, ``reply_type``, ``reply_resolver``, ``max_size``,
        ``default_ttl`` and ``dispatcher``, with the same meaning as in every backend.
        """
        raise NotImplementedError(f"{type(self).__name__} must override make_mailbox(name)")

    def open_again(self, mailbox: Any, **options: Any) -> Any:
        """Return a second mailbox object on the queue of the first."""
        return self.make_mailbox(mailbox.name, **options)

    def mailbox(self, **options: Any) -> Any:
        """Make a mailbox on a new queue, called as the current test requires (sync or async)."""
        try:
            return self._driven(self.make_mailbox(unique_name(), **options))
        except UnsupportedOperationError as error:
            pytest.skip(f"declared: {error}")

    def again(self, box: Any, **options: Any) -> Any:
        """Open a second mailbox on the queue of ``box``."""
        return self._driven(self.open_again(box.raw, **options))

    def needs(self, box: Any, capability: str) -> None:
        """Skip the test if the backend declares that it lacks this capability."""
        if not getattr(box.capabilities, capability):
            pytest.skip(f"declared: capabilities.{capability} is False")

    def take(self, box: Any, count: int = 1, lease: float = LONG) -> list[Any]:
        """Receive exactly ``count`` messages, with as many receives as the backend needs."""
        taken: list[Any] = []
        deadline = time.monotonic() + self.patience
        while len(taken) < count and time.monotonic() < deadline:
            ask = min(count - len(taken), box.limits.max_batch)
            taken += box.receive(max_messages=ask, visibility_timeout=lease, wait_time_seconds=1)
        assert len(taken) == count, f"received {len(taken)} of {count} messages"
        return taken

    def take_one(self, box: Any, lease: float = LONG) -> Any:
        """Receive one message."""
        (message,) = self.take(box, 1, lease)
        return message

    def ask(self, box: Any, body: Any = "question", reply_timeout: float = LONG) -> Any:
        """Send a message that expects a reply; skip the test if the backend has no replies."""
        try:
            return box.send_expecting_reply(body, reply_timeout=reply_timeout)
        except UnsupportedOperationError as error:
            pytest.skip(f"declared: {error}")

    def handle(self, box: Any, reply_id: Any) -> Any:
        """Return a handle on the reply with this id."""
        return Proxy(box.raw.reply(reply_id), self.driver)

    def fill(self, box: Any, *bodies: Any) -> list[str]:
        """Send the bodies one by one."""
        return [box.send(body) for body in bodies]

    def drain(self, box: Any) -> list[Any]:
        """Receive and acknowledge all visible messages; return their bodies."""
        bodies = []
        while messages := box.receive(max_messages=min(10, box.limits.max_batch)):
            for message in messages:
                bodies.append(message.body)
                message.acknowledge()
        return bodies

    def keeps_bodies(self, box: Any) -> bool:
        """Return whether bodies are stored as objects, so that encoding cannot fail."""
        return isinstance(box._sealer, ObjectSealer)

    def keeps_addresses(self, box: Any) -> bool:
        """Return whether ``reply_to`` is stored as a mailbox object and needs no resolving."""
        return isinstance(box._sealer, ObjectSealer | CheckedSealer)

    def keeps_bytes(self, box: Any) -> bool:
        """Return whether the store's payload is our JSON envelope as bytes."""
        return isinstance(box._sealer, JsonSealer)

    def close_all(self) -> None:
        """Close everything that the test opened."""
        for box in self._opened_here():
            box.close()

    def _driven(self, raw: Any) -> Proxy:
        if self.driver.face == "sync" and raw.store.steps == "awaited":
            pytest.fail(f"{raw!r} has an asyncio client: set faces = ('async',) in this class")
        box = Proxy(raw, self.driver)
        self._opened_here().append(box)
        return box

    def _opened_here(self) -> list[Proxy]:
        return self.__dict__.setdefault("_opened", [])  # type: ignore[no-any-return]
