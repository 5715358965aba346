"""Readers of the parts of a reply that leave in the middle and come back."""

import asyncio
import random
import threading
import time
from typing import Any

from chaos.answering import JOBS
from chaos.answers import PartSeen, parts_read
from chaos.asking import KEEP, LONG, PATIENCE, Crew, body, look_at
from chaos.stage import Stage

__all__ = ["Readers"]

ASKERS = 8
PARTS = 20
LONGEST_STAY = 12
"""Parts after which a reader leaves at the latest."""


class Readers:
    """Threads that ask; two readers follow each reply, and a third reads it once it is settled."""

    def __init__(self, stage: Stage, backend: Any) -> None:
        self._stage = stage
        self._backend = backend
        self._box = backend.mailbox(JOBS)
        self._over = threading.Event()
        self.begun = threading.Event()
        """Set once there was a part to read."""
        self._read: list[tuple[int, str, list[list[PartSeen]]]] = []
        self._errors: list[str] = []
        self._numbers = iter(range(10**9))
        self._threads = [threading.Thread(target=self._guarded, daemon=True) for _ in range(ASKERS)]
        for thread in self._threads:
            thread.start()

    def finish(self, crew: Crew) -> None:
        """Stop asking, let all be done, and judge what was read."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                self._errors.append("a reader has not come to the end of its reply")
        crew.finish()
        wrong, series = self._errors, 0
        for number, run, readings in self._read:
            wrong += parts_read(number, readings, PARTS, run)
            series += len({part.series for part in readings[-1]})
        self._stage.violations += wrong
        self._stage.figures |= {
            "replies": len(self._read),
            "series": series,
            "parts": sum(len(readings[-1]) for _, _, readings in self._read),
        }

    def _guarded(self) -> None:
        try:
            while not self._over.is_set():
                self._ask(next(self._numbers))
        except Exception as error:
            self._errors.append(f"a reader met {error!r}")

    def _ask(self, number: int) -> None:
        request = body(number, parts=PARTS, work=0.1)
        reply = self._box.send_expecting_reply(request, reply_timeout=LONG, keep=KEEP)
        plain: list[PartSeen] = []
        awaited: list[PartSeen] = []
        other = threading.Thread(target=self._follow, args=(reply.id, plain), daemon=True)
        other.start()
        asyncio.run(self._follow_async(reply.id, awaited))
        other.join(PATIENCE)
        whole: list[PartSeen] = []
        self._follow(reply.id, whole)
        run = look_at(self._stage.connection, reply.id).detail
        self._read.append((number, run, [plain, awaited, whole]))

    def _follow(self, id: str, seen: list[PartSeen]) -> None:
        """Read from where the last stay ended, until there is nothing more to come."""
        while not self._is_over(id, seen):
            stay = random.randint(1, LONGEST_STAY)
            for part in self._backend.reply(id).parts(start=len(seen), timeout=PATIENCE):
                seen.append(_seen(part))
                self.begun.set()
                stay -= 1
                if not stay:
                    break

    async def _follow_async(self, id: str, seen: list[PartSeen]) -> None:
        while not await asyncio.to_thread(self._is_over, id, seen):
            stay = random.randint(1, LONGEST_STAY)
            parts = self._backend.reply(id).parts_async(start=len(seen), timeout=PATIENCE)
            async for part in parts:
                seen.append(_seen(part))
                stay -= 1
                if not stay:
                    break
            await parts.aclose()

    def _is_over(self, id: str, seen: list[PartSeen]) -> bool:
        """Whether a reader has all there is; a failed reply is yet to be replayed."""
        status = self._backend.reply(id).status()
        if status.state == "failed":
            time.sleep(0.02)
        return status.state == "done" and len(seen) > (status.last_part or 0)


def _seen(part: Any) -> PartSeen:
    return PartSeen(part.index, part.delivery, part.value["run"], part.value["place"])
