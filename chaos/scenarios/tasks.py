"""Tasks of an event loop, cancelled at any moment of what they do."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from chaos.awaited import awaited_mailbox
from chaos.recording import recorded
from chaos.stage import QUEUE, Stage, scenario
from testkit.ports import HOST
from testkit.proxy import Proxy
from testkit.waiting import eventually
from weakincentives.runtime.mailbox.errors import MailboxError

LEASE = 2.0
AT_ONCE = 20
STRIKES_TO_A_CUT = 50
LET_GO = 30.0
"""Seconds within which tasks and connections that are not needed any more are gone."""


@scenario("sqlite", "redis", "redis+asyncio", full=10_000, short=1000)
def cancellation_storm(stage: Stage):
    """receives, settlements and sends cancelled at any moment: leases go back, nothing is kept"""
    connections = _connections(stage)
    unsure = asyncio.run(_storm(stage))
    kept = set(stage.snapshot().leased) - unsure
    stage.violations += [f"kept: {id} is leased, and nobody was given it" for id in kept]
    if connections is not None:
        eventually(lambda: _connections(stage) <= connections, LET_GO, "connections to be closed")
    stage.drain(within=LEASE + 10)
    return stage.verdict()


@scenario("redis", "redis+asyncio", full=5000, short=500)
def cancellation_storm_on_a_bad_line(stage: Stage):
    """the same, while all connections are cut again and again: leases end by themselves at last"""
    connections = _connections(stage)
    with Proxy(stage.server.port) as proxy:
        stage.reach(f"redis://{HOST}:{proxy.port}/0")
        asyncio.run(_storm(stage, proxy.cut_all))
        eventually(lambda: _connections(stage) <= connections, LET_GO, "connections to be closed")
        stage.drain(within=LEASE + 10)
        stage.connection.close()
    return stage.verdict()


async def _storm(stage: Stage, cut: Callable[[], None] = lambda: None) -> set[str]:
    """Return the ids of messages whose settlement was cancelled: they may still be leased."""
    box = awaited_mailbox(stage.url, QUEUE) if stage.awaited else stage.connection.mailbox(QUEUE)
    storm = Storm(stage, recorded(box, stage.log), cut)
    await asyncio.gather(*(storm.consume() for _ in range(AT_ONCE)), storm.send())
    if (here := _connections(stage) or 0) > 2 * AT_ONCE + 10:
        stage.violations.append(f"{here} connections are open, of {AT_ONCE} tasks")
    if rest := storm.left_behind():
        await asyncio.wait(rest, timeout=LET_GO)
    stage.violations += [f"a task is left behind: {task}" for task in storm.left_behind()]
    box.close()
    return storm.unsure


class Storm:
    """Consumers and a sender, struck down again and again."""

    def __init__(self, stage: Stage, box: Any, cut: Callable[[], None]) -> None:
        self._stage = stage
        self._box = box
        self._cut = cut
        self._strikes = 0
        self.unsure: set[str] = set()

    @property
    def over(self) -> bool:
        return self._strikes >= self._stage.trials

    async def consume(self) -> None:
        rng = self._stage.rng
        while not self.over:
            wait = rng.choice((0, 0, 5))
            receive = self._box.receive_async(
                max_messages=rng.randint(1, 3), visibility_timeout=LEASE, wait_time_seconds=wait
            )
            for message in await self._struck(receive) or ():
                if not await self._struck(self._settlement(rng, message)):
                    self.unsure.add(message.id)

    async def send(self) -> None:
        while not self.over:
            # Few enough that those who receive have to wait now and then.
            if (await self._box.stats_async()).pending < AT_ONCE:
                batch = ["x"] * self._stage.rng.randint(1, 30)
                await self._struck(self._box.send_batch_async(batch))
            await asyncio.sleep(0.005)

    @staticmethod
    def left_behind() -> list[Any]:
        return [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    @staticmethod
    async def _settlement(rng: random.Random, message: Any) -> bool:
        draw = rng.random()
        if draw < 0.2:
            await message.extend_visibility_async(LEASE)
        if draw < 0.6:
            return await message.acknowledge_async()
        return await message.nack_async()

    async def _struck(self, work: Awaitable[Any]) -> Any:
        """Begin, strike after a while, and return what came of it; None if it was cancelled."""
        rng, task = self._stage.rng, asyncio.ensure_future(work)
        if rng.random() < 0.5:
            for _ in range(rng.randrange(30)):
                await asyncio.sleep(0)
        else:
            await asyncio.sleep(rng.uniform(0, 0.01))
        if task.cancel():
            self._strikes += 1
            if self._strikes % STRIKES_TO_A_CUT == 0:
                self._cut()
        if rng.random() < 0.3:
            await asyncio.sleep(0)
            task.cancel()
        with suppress(asyncio.CancelledError, MailboxError):
            return await task
        return None


def _connections(stage: Stage) -> int | None:
    """How many the server has; the one that asks is counted each time."""
    if stage.backend == "sqlite":
        return None
    return int(stage.server.info("clients")["connected_clients"])
