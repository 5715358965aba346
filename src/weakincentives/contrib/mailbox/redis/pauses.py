"""Paused queues of a Redis server."""

from collections.abc import Sequence
from contextlib import suppress

from weakincentives.runtime.mailbox.errors import MailboxConnectionError
from weakincentives.runtime.mailbox.seam.driver import Steps

from .client import ScriptClient
from .redis_py import slot_of
from .resp import Head
from .script_call import Call
from .scripts import script

__all__ = ["RedisPauseTable"]

NAMES = b"{wink}:paused_names"
SLOT = slot_of(NAMES)
MOST_AT_ONCE = 30
"""How many queues of one server are looked at in one call."""


class RedisPauseTable:
    """The paused ones of the queues of a server, or of a cluster."""

    def __init__(self, client: ScriptClient) -> None:
        self.steps: Steps = "awaited" if client.topology.awaited else "blocking"
        self.backend_key = client.servers
        self._client = client

    async def pause(self, queue: str, note: bytes) -> None:
        """Pause a queue; its name is added first, so that no paused queue is ever missing there."""
        await self._names("add", queue, note)
        await self._pause(queue, note)

    async def resume(self, queue: str) -> bool:
        """Resume a queue, and wake its consumers; False if it was not paused."""
        note, may_have_run = await self._pause(queue, b"")
        if note is not None:
            # It is done already, and a name too many does no harm: the user may have no permission.
            with suppress(MailboxConnectionError):
                await self._names("remove", queue, note)
        return note is not None or may_have_run

    async def notes(self) -> Sequence[tuple[str, bytes]]:
        """Return the paused queues, each with its note."""
        names = sorted(await self._names("list"))
        at_once = 1 if self._client.router.is_cluster else MOST_AT_ONCE
        found: list[tuple[str, bytes]] = []
        for start in range(0, len(names), at_once):
            some = names[start : start + at_once]
            keys = [b"{queue:%b}:paused" % name for name in some]
            call = Call(Head(script("pause_notes"), *keys))
            notes = (await self._client.call(slot_of(keys[0]), call)).answer
            pairs = zip(some, notes, strict=True)
            found += ((name.decode("utf-8", "replace"), note) for name, note in pairs if note)
        return found

    async def _pause(self, queue: str, note: bytes) -> tuple[bytes | None, bool]:
        """Return the note that there was, and whether an earlier try may have removed it."""
        keys = [f"{{queue:{queue}}}:{part}".encode() for part in ("paused", "wake")]
        call = Call(Head(script("pause"), *keys), (note,))
        outcome = await self._client.call(slot_of(keys[0]), call)
        return outcome.answer, outcome.repeated

    async def _names(self, step: str, queue: str = "", note: bytes = b"") -> Sequence[bytes]:
        call = Call(Head(script("paused_names"), NAMES), (step, queue, note))
        answer = (await self._client.call(SLOT, call)).answer
        return answer if step == "list" else ()
