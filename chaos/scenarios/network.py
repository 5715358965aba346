"""The way to the server: cut at every byte, deaf, slow and lossy."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from chaos.checkers import percentiles
from chaos.history import Log, now
from chaos.load import Load
from chaos.snapshots import of_redis
from chaos.stage import Stage, scenario
from testkit.ports import HOST
from testkit.proxy import Proxy
from weakincentives.runtime.mailbox.errors import MailboxError, ReceiptHandleExpiredError

LEASE = 30


class Case(NamedTuple):
    """An operation whose messages are cut: what comes before, and what must be true after."""

    name: str
    prepare: Callable[[Any], Any]
    act: Callable[[Any, Any], Any]
    left: tuple[tuple[int, int, int], ...]
    """How many may be pending, leased and delayed after it."""


def _sent(box: Any) -> None:
    return None


def _waiting(box: Any) -> None:
    box.send("x")


def _held(box: Any) -> Any:
    box.send("x")
    (message,) = box.receive(visibility_timeout=LEASE)
    return message


def _asked(box: Any) -> Any:
    reply = box.send_expecting_reply("x")
    (message,) = box.receive(visibility_timeout=LEASE)
    return reply, message


def _replied(box: Any, pair: Any) -> None:
    reply, message = pair
    message.reply("y")
    if reply.wait(timeout=5) != "y":
        raise AssertionError("the reply is not what was sent")


CASES = (
    Case("send", _sent, lambda box, _: box.send("x"), ((1, 0, 0),)),
    # A lease whose answer was lost is taken again only when it has run out.
    Case("receive", _waiting, lambda box, _: box.receive(visibility_timeout=LEASE), ((0, 1, 0),)),
    Case("ack", _held, lambda _, message: message.acknowledge(), ((0, 0, 0),)),
    Case("nack", _held, lambda _, message: message.nack(), ((1, 0, 0),)),
    Case("extend", _held, lambda _, message: message.extend_visibility(LEASE), ((0, 1, 0),)),
    Case("reply", _asked, _replied, ((0, 0, 0),)),
)


@scenario("redis", "redis+asyncio", full=1, short=37)
def cut_at_every_byte(stage: Stage):
    """the connection cut after each byte of send, receive, ack, nack, extend and reply"""
    # Here the number says which bytes: every one, or each so many.
    trials = 0
    with Wire(stage) as wire:
        for case in CASES:
            for direction in ("request", "reply"):
                length = wire.length(case, direction)
                for at in range(0, length, stage.trials):
                    wire.try_out(case, partial(wire.proxy.cut, direction, at, reset=at % 2 == 1))
                    trials += 1
        stage.figures["cuts"] = wire.proxy.cuts
    return stage.verdict(trials=trials)


@scenario("redis", "redis+asyncio", full=3, short=499)
def new_connection_cut(stage: Stage):
    """a connection cut while it is made and its server is looked at, for a first send"""
    # Here, too, the number says which bytes; those of a purge that follows do not count.
    with Wire(stage) as wire:
        for direction in ("request", "reply"):
            wire.first_send(wire.proxy.count)
            for at in range(0, wire.proxy.passed(direction), stage.trials):
                wire.first_send(partial(wire.proxy.cut, direction, at))
    return stage.verdict(trials=wire.proxy.cuts)


@scenario("sqs", full=120, short=6)
@scenario("redis", "redis+asyncio", full=1000, short=24)
def reply_dropped_after_apply(stage: Stage):
    """the server did what it was told, and its answer never arrived"""
    with Wire(stage) as wire:
        for trial in range(stage.trials):
            case = CASES[trial % len(CASES)]
            wire.try_out(case, wire.proxy.drop_reply)
    return stage.verdict()


@scenario("redis", "redis+asyncio", full=4, short=1)
def slow_and_lossy(stage: Stage):
    """20 ms more each way, 200 kB/s, and every connection cut now and then, under load"""
    with Wire(stage) as wire:
        wire.proxy.delay, wire.proxy.rate = 0.02, 200_000.0
        stage.reach(wire.url)
        load = Load(stage, senders=2, consumers=2, lease=5.0)
        for _ in range(stage.trials):
            time.sleep(stage.rng.uniform(0.5, 1.5))
            wire.proxy.cut_all()
        load.stop()
        stage.violations += load.errors
        wire.proxy.delay, wire.proxy.rate = 0.0, None
        stage.drain(lease=30)
        stage.connection.close()
    return stage.verdict()


@scenario("redis", "redis+asyncio", full=5, short=1)
def black_hole(stage: Stage):
    """nothing passes and nobody says so; clients find out by their timeout"""
    times = []
    with Wire(stage) as wire:
        stage.reach(f"{wire.url}?socket_timeout=0.5")
        load = Load(stage, senders=2, consumers=2, lease=5.0)
        for _ in range(stage.trials):
            time.sleep(0.3)
            with wire.proxy.black_hole():
                time.sleep(1.5)
                healed = now()
            times.append(load.recovered(healed))
        load.stop()
        stage.violations += load.errors
        stage.drain(lease=30)
        stage.connection.close()
    stage.figures |= {
        f"first success after healing {k}, s": round(v, 3) for k, v in percentiles(times).items()
    }
    return stage.verdict()


class Wire:
    """A mailbox behind a proxy, and a look past it at what is really there."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.proxy = Proxy(stage.server.port)
        port = self.proxy.port
        sqs = stage.backend == "sqs"
        self.url = stage.server.url(port) if sqs else f"redis://{HOST}:{port}/0"
        self._backend = stage.open(self.url)
        self._log = Log(stage.histories, "behind-the-proxy")
        self._direct = stage.open(stage.url) if sqs else stage.server.client()
        self._number = 0

    def __enter__(self) -> "Wire":
        return self

    def __exit__(self, *exc: object) -> None:
        self._backend.close()
        self.proxy.close()
        self._direct.close()
        self._log.close()

    def first_send(self, arm: Callable[[], None]) -> None:
        """Send a message through a client that has no connection yet."""
        self._number += 1
        queue, wrong = f"q{self._number}", self._stage.violations
        with self._stage.open(self.url) as backend:
            box = self._stage.recorded(backend, queue, self._log)
            arm()
            try:
                box.send("x")
            except MailboxError as error:
                wrong.append(f"first send failed: {type(error).__name__}: {error}")
            pending = len(of_redis(self._direct, queue).pending)
            if pending != 1:
                wrong.append(f"first send left {pending} messages")
            box.purge()
            box.close()

    def length(self, case: Case, direction: Any) -> int:
        """How many bytes the operation takes in a direction when nothing is cut."""
        measured: list[int] = []
        passed = self.proxy.passed
        for _ in range(2):  # the first time, the connection is made as well
            self.try_out(case, self.proxy.count, then=lambda: measured.append(passed(direction)))
        return measured[-1]

    def try_out(
        self,
        case: Case,
        arm: Callable[[], None],
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepare, arm the fault, act, and look at what there is."""
        self._number += 1
        queue = f"q{self._number}"
        box = self._stage.recorded(self._backend, queue, self._log)
        prepared = case.prepare(box)
        arm()
        wrong = self._stage.violations
        try:
            case.act(box, prepared)
        except (MailboxError, AssertionError) as error:
            # SQS takes a second deletion by the same handle as done; its emulator does not.
            if not (self._stage.backend == "sqs" and isinstance(error, ReceiptHandleExpiredError)):
                wrong.append(f"{case.name} failed: {type(error).__name__}: {error}")
        then()
        counts = self._counts(queue)
        if counts not in self._allowed(case):
            wrong.append(f"{case.name} left {counts}, not {case.left}")
        box.purge()
        box.close()

    def _counts(self, queue: str) -> tuple[int, int, int]:
        """How many are pending, leased and delayed, seen past the proxy."""
        if self._stage.backend == "sqs":
            stats = self._direct.mailbox(queue).stats()
            return stats.pending, stats.in_flight, stats.delayed
        left = of_redis(self._direct, queue)
        return len(left.pending), len(left.leased), len(left.delayed)

    def _allowed(self, case: Case) -> tuple[tuple[int, int, int], ...]:
        # A Standard queue does not know a send again that boto3 had to repeat.
        twice = self._stage.backend == "sqs" and case.name == "send"
        return (*case.left, (2, 0, 0)) if twice else case.left
