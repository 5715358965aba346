"""What a backend tells the contract about itself, and what every test needs."""

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

__all__ = ["LONG", "Bench", "Harness", "async_only", "refused", "unique_name"]

F = TypeVar("F", bound=Callable[..., None])

LONG = 60
"""A lease that no test outlives."""


def unique_name() -> str:
    """Return a queue name that nobody has used before."""
    return f"contract-{new_id().replace('_', '-')}"


def refused() -> Any:
    """Expect a settlement to be refused because the lease is over."""
    return pytest.raises(ReceiptHandleExpiredError)


def async_only(test: F) -> F:
    """Run a test on the async face alone: only a task can be cancelled, or shares its thread."""
    test.async_only = True  # type: ignore[attr-defined]
    return test


class Bench:
    """The part of a contract class that is the same for mailboxes and reply stores."""

    faces: ClassVar[tuple[Face, ...]] = ("sync", "async")
    """Which faces exist; only ``("async",)`` for an asyncio client."""
    moment: ClassVar[float] = 0.25
    """The shortest time that is told apart here; 1 where only whole seconds are."""

    patience: ClassVar[float] = DEADLINE / 2
    """Seconds to wait for what must come, generous for slow machines."""
    fake_clock: ClassVar[bool] = False
    """Whether `elapse` moves a fake clock, so that minutes cost nothing."""

    driver: Driver

    def elapse(self, seconds: float) -> None:
        """Let time pass on the backend's clock; override it if that clock is a fake."""
        time.sleep(seconds * 1.1 + 0.02)

    def needs_fake_clock(self) -> None:
        """Skip, loudly, what would take minutes."""
        if not self.fake_clock:
            pytest.skip("takes minutes: only with fake_clock = True")

    def clean_up(self) -> None:
        """Let go of connections and files; `driver.run` awaits what must be awaited."""

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
        """Close what the test opened."""


class Harness(Bench):
    """Hooks for a backend, and helpers that work on any."""

    model_expiry: ClassVar[bool] = False
    """Let the state machine's leases run out, although that takes real time."""
    model_examples: ClassVar[int] = 20
    """How many programs the state machine runs."""

    _opened: list[Proxy]

    def make_mailbox(self, name: str, **options: Any) -> Any:
        """Return a new mailbox.

        The options are a choice of ``body_type``, ``reply_type``, ``reply_resolver``,
        ``max_size``, ``default_ttl`` and ``dispatcher``, meant as every backend means them.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how to make_mailbox(name)")

    def open_again(self, mailbox: Any, **options: Any) -> Any:
        """Return a second mailbox object on the queue of the first."""
        return self.make_mailbox(mailbox.name, **options)

    def mailbox(self, **options: Any) -> Any:
        """Make a mailbox on a queue of its own, driven by the face under test."""
        try:
            return self._driven(self.make_mailbox(unique_name(), **options))
        except UnsupportedOperationError as error:
            pytest.skip(f"declared: {error}")

    def again(self, box: Any, **options: Any) -> Any:
        """Open the queue of ``box`` once more."""
        return self._driven(self.open_again(box.raw, **options))

    def needs(self, box: Any, capability: str) -> None:
        """Skip, loudly, what the backend declares that it cannot do."""
        if not getattr(box.capabilities, capability):
            pytest.skip(f"declared: capabilities.{capability} is False")

    def take(self, box: Any, count: int = 1, lease: float = LONG) -> list[Any]:
        """Receive exactly ``count`` messages, in as many looks as the backend needs."""
        taken: list[Any] = []
        deadline = time.monotonic() + self.patience
        while len(taken) < count and time.monotonic() < deadline:
            ask = min(count - len(taken), box.limits.max_batch)
            taken += box.receive(max_messages=ask, visibility_timeout=lease, wait_time_seconds=1)
        assert len(taken) == count, f"{len(taken)} of {count} messages came"
        return taken

    def take_one(self, box: Any, lease: float = LONG) -> Any:
        """Receive one message."""
        (message,) = self.take(box, 1, lease)
        return message

    def ask(self, box: Any, body: Any = "question", reply_timeout: float = LONG) -> Any:
        """Send and expect a reply, or skip where the backend keeps none."""
        try:
            return box.send_expecting_reply(body, reply_timeout=reply_timeout)
        except UnsupportedOperationError as error:
            pytest.skip(f"declared: {error}")

    def fill(self, box: Any, *bodies: Any) -> list[str]:
        """Send the bodies one by one."""
        return [box.send(body) for body in bodies]

    def drain(self, box: Any) -> list[Any]:
        """Receive and acknowledge what is visible now; return the bodies."""
        bodies = []
        while messages := box.receive(max_messages=min(10, box.limits.max_batch)):
            for message in messages:
                bodies.append(message.body)
                message.acknowledge()
        return bodies

    def keeps_bodies(self, box: Any) -> bool:
        """Whether bodies stay objects: nothing is encoded, so nothing can fail to be."""
        return isinstance(box.sealer, ObjectSealer)

    def keeps_addresses(self, box: Any) -> bool:
        """Whether ``reply_to`` stays the mailbox itself, so that nothing need be resolved."""
        return isinstance(box.sealer, ObjectSealer | CheckedSealer)

    def keeps_bytes(self, box: Any) -> bool:
        """Whether the store's payload is our envelope as bytes."""
        return isinstance(box.sealer, JsonSealer)

    def close_all(self) -> None:
        """Close what the test opened."""
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
