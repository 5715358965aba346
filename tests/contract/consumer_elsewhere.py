"""A SQLite file with the sender in this process and the consumer in another."""

import asyncio
from collections.abc import Iterator
from functools import partial
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import pytest

from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.runtime.mailbox.seam.store import Leases
from weakincentives.runtime.mailbox.testing import driven


class Consumers:
    """Lives in the other process: the consumer's side of every queue."""

    def __init__(self) -> None:
        self._mailboxes: dict[tuple[str, str], Any] = {}
        self._listeners: list[Any] = []

    def call(self, queue: tuple[str, str], options: dict[str, Any], step: str, *args: Any) -> Any:
        acknowledge = args[2] if step == "lease" and len(args) > 2 else ()
        store = self._store(queue, options)
        if step == "lease":
            return store.lease_now(*args[:2], acknowledge=acknowledge)
        return driven(getattr(store, step)(*args))

    def listen(self, queue: tuple[str, str], options: dict[str, Any]) -> int:
        self._listeners.append(self._store(queue, options).listen())
        return len(self._listeners) - 1

    def listener(self, number: int, step: str, *args: Any) -> Any:
        result = getattr(self._listeners[number], step)(*args)
        return driven(result) if step == "lease" else result

    def _store(self, queue: tuple[str, str], options: dict[str, Any]) -> Any:
        if queue not in self._mailboxes:
            name, path = queue
            self._mailboxes[queue] = SQLiteMailbox(name, path, durability="normal", **options)
        return self._mailboxes[queue].store


class OtherProcess(BaseManager):
    pass


OtherProcess.register("Consumers", Consumers)


class RemoteStore:
    """Puts and cancels in this process; leases, waits and settles in the other one."""

    steps = "blocking"

    def __init__(self, local: Any, path: Path, options: dict[str, Any], consumers: Any) -> None:
        self._local = local
        self._call = partial(consumers.call, (local.name, str(path)), options)
        self._listen = partial(consumers.listen, (local.name, str(path)), options)
        self._listener = consumers.listener
        self.name = local.name
        self.limits = local.limits
        self.capabilities = local.capabilities
        self.clock = local.clock
        self.look_interval = local.look_interval
        self.put = local.put
        self.peek = local.peek
        self.cancel = local.cancel
        self.worker_table = local.worker_table
        self.pause_table = local.pause_table
        self.close = local.close

    async def lease(
        self, count: int, seconds: float, *, acknowledge: Any = (), ids: Any = None
    ) -> Leases:
        if ids is not None:
            return await self._local.lease(count, seconds, ids=ids)  # type: ignore[no-any-return]
        return self._call("lease", count, seconds, acknowledge)  # type: ignore[no-any-return]

    async def acknowledge(self, handles: Any) -> Any:
        return self._call("acknowledge", handles)

    async def release(self, handles: Any, delay: float, how: str = "failed") -> Any:
        return self._call("release", handles, delay, how)

    async def extend(self, handles: Any, seconds: float) -> Any:
        return self._call("extend", handles, seconds)

    async def lease_states(self, handles: Any) -> Any:
        return self._call("lease_states", handles)

    async def purge(self) -> Any:
        return self._call("purge")

    async def stats(self) -> Any:
        return self._call("stats")

    def listen(self, *, in_loop: bool = False) -> "RemoteListener":
        return RemoteListener(partial(self._listener, self._listen()), in_loop)


class RemoteListener:
    def __init__(self, call: Any, in_loop: bool) -> None:
        self._call = call
        self._in_loop = in_loop

    async def lease(self, count: int, seconds: float, wait: float) -> Any:
        if not self._in_loop:
            return self._call("lease", count, seconds, wait)
        # In slices: the executor must stay free, as the contract demands of every backend.
        return await asyncio.to_thread(self._call, "lease", count, seconds, min(wait, 0.01))

    def interrupt(self) -> None:
        self._call("interrupt")

    def close(self) -> None:
        self._call("close")


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Any]:
    with OtherProcess() as manager:
        yield manager.Consumers()  # type: ignore[attr-defined]


class ConsumerElsewhere:
    """Messages are sent by this process and received by another."""

    model_examples = 5

    @pytest.fixture(autouse=True)
    def file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "contract.db"

    @pytest.fixture(autouse=True)
    def consumers(self, elsewhere: Any) -> None:
        self.remote = elsewhere

    def make_mailbox(self, name: str, **options: Any) -> SQLiteMailbox[Any, Any]:
        made: SQLiteMailbox[Any, Any]
        made = SQLiteMailbox(name, self.path, durability="normal", **options)
        known = {key: options[key] for key in ("max_size", "default_ttl") if key in options}
        made._use(RemoteStore(made.store, self.path, known, self.remote))
        return made
