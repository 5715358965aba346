"""Every interleaving of two clients up to a depth, on a real store, compared with the model.

Time does not pass by itself: leases and delays are long, and a step of the program moves the
store's clock, or its stored deadlines, beyond all of them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from weakincentives.contrib.mailbox.contract.model import DeliveredMessage, Model
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

__all__ = ["ALPHABET", "Stand", "Step", "check_program", "explore", "programs"]

LEASE = 1000.0
BEYOND = 2 * LEASE


class Step(NamedTuple):
    """What one of the clients does next."""

    client: int
    op: str

    def __str__(self) -> str:
        return f"{self.op}{'AB'[self.client]}" if self.op in PERSONAL else self.op


PERSONAL = ("receive", "ack", "nack", "delay", "extend", "exchange")
"""Steps that depend on who takes them: settling is by the last handle that this client was given,
also if it is long dead."""
COMMON = ("send", "expire", "purge")
ALPHABET = tuple(Step(0, op) for op in COMMON) + tuple(
    Step(client, op) for op in PERSONAL for client in (0, 1)
)


@dataclass(frozen=True)
class Stand:
    """Where programs run: an empty store, and a way to let time pass."""

    store: Any
    expire: Callable[[], None]


def programs(depth: int, begun: tuple[Step, ...] = (ALPHABET[0],)) -> Iterator[tuple[Step, ...]]:
    """Every program of this length that begins with a send and settles only what was received.

    Who is called A is of no consequence: the first to receive is.
    """
    if len(begun) == depth:
        yield begun
        return
    received = {step.client for step in begun if step.op == "receive"}
    for step in ALPHABET:
        first = step.op == "receive" and (received or step.client == 0)
        if step.op in COMMON or first or step.client in received:
            yield from programs(depth, (*begun, step))


def explore(depth: int, make: Callable[[], Stand], every: int = 1) -> tuple[int, int, list[str]]:
    """Run every program; return how many there were, how many steps, and what went wrong."""
    count = steps = 0
    wrong: list[str] = []
    for number, program in enumerate(programs(depth)):
        if number % every:
            continue
        count += 1
        steps += len(program)
        problem = check_program(make(), program)
        if problem:
            wrong.append(problem)
            if len(wrong) >= 5:
                break
    return count, steps, wrong


def check_program(stand: Stand, program: Sequence[Step]) -> str:
    """Run one program on a store and the model; return where they part, or nothing."""
    run = _Run(stand)
    for number, step in enumerate(program):
        try:
            run.take(step)
            run.compare(seeing=step.op != "expire")
        except Exception as error:
            shown = " ".join(map(str, program[: number + 1]))
            return f"{shown}: {type(error).__name__}: {error}"
    return ""


class _Run:
    def __init__(self, stand: Stand) -> None:
        self.store = stand.store
        self._let_time_pass = stand.expire
        self.model = Model()
        self._handles = ["", ""]
        self._sent = 0

    def take(self, step: Step) -> None:
        getattr(self, f"_{step.op}")(step.client)

    def compare(self, *, seeing: bool) -> None:
        # After time has passed nobody looks: a look could bring back what is due, and hide a store
        # that relies on it.
        if not seeing:
            return
        stats = driven(self.store.stats())
        states = [self.model.in_state(state) for state in ("pending", "leased", "delayed")]
        counted = (stats.pending, stats.in_flight, stats.delayed)
        assert counted == tuple(map(len, states)), f"{counted} are pending, leased, delayed"
        seen = driven(self.store.peek(100))
        assert sorted(one.id for one in seen) == sorted(states[0]), "what waits is not what is seen"

    def _send(self, client: int) -> None:
        self._sent += 1
        id = f"m{self._sent}"
        driven(self.store.put((Outgoing(id, b"%d" % self._sent),)))
        self.model.send(id, self._sent, 0)

    def _receive(self, client: int, acknowledge: Sequence[str] = ()) -> None:
        leases = driven(self.store.lease(1, LEASE, acknowledge=acknowledge))
        expected = [self.model.acknowledge(handle) for handle in acknowledge]
        assert list(leases.acknowledged) == expected, f"acknowledged {leases.acknowledged}"
        got = [
            DeliveredMessage(
                one.id, one.handle, int(one.payload), one.delivery_count, one.nack_count
            )
            for one in leases.messages
        ]
        self.model.received(got, 1, LEASE)
        for delivery in got:
            self._handles[client] = delivery.handle

    def _exchange(self, client: int) -> None:
        self._receive(client, [self._handles[client]])

    def _ack(self, client: int) -> None:
        handle = self._handles[client]
        self._agree(driven(self.store.acknowledge([handle])), self.model.acknowledge(handle))

    def _nack(self, client: int) -> None:
        handle = self._handles[client]
        self._agree(driven(self.store.release([handle], 0.0)), self.model.release(handle, 0))

    def _delay(self, client: int) -> None:
        handle = self._handles[client]
        self._agree(driven(self.store.release([handle], LEASE)), self.model.release(handle, LEASE))

    def _extend(self, client: int) -> None:
        handle = self._handles[client]
        self._agree(driven(self.store.extend([handle], LEASE)), self.model.extend(handle, LEASE))

    def _purge(self, client: int) -> None:
        expected, purged = self.model.purge(), driven(self.store.purge())
        assert purged == expected, f"purged {purged}, not {expected}"

    def _expire(self, client: int) -> None:
        self._let_time_pass()
        self.model.advance(BEYOND)

    def _agree(self, answer: Sequence[bool], expected: bool) -> None:
        assert list(answer) == [expected], f"the store says {list(answer)}, the model {expected}"
