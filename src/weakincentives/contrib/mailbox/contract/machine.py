"""Runs random programs on a mailbox and on its model, which must agree after every step."""

from functools import partial
from typing import Any, get_args

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from weakincentives.runtime.mailbox.seam.store import GivingBack

from .harness import Harness
from .model import DeliveredMessage, Model

__all__ = ["MailboxMachine", "StateMachine"]

LONG_LEASE = 1000
NEEDED = (
    "ordered",
    "idempotent_send",
    "purge_forgets_ids",
    "fenced",
    "nack_counts",
    "uncounted_releases",
    "delays",
    "peeks",
    "exact_counts",
)

some_handle = st.integers(min_value=0, max_value=50)
some_way = st.sampled_from(get_args(GivingBack))
some_time = st.integers(min_value=0, max_value=3)


class MailboxMachine(RuleBasedStateMachine):
    """Sends, receives and settles at random, sometimes with handles that have expired.

    ``contract`` makes the mailbox and lets time pass. The invariants INV-1 to INV-9 of
    ``docs/invariants.md`` are checked here and in `Model`.
    """

    def __init__(self, contract: Harness) -> None:
        super().__init__()
        self.contract = contract
        self.model = Model()
        self.bodies = 0
        self.unseen = False

    @initialize()
    def open(self) -> None:
        self.box: Any = self.contract.mailbox()
        for capability in NEEDED:
            self.contract.needs(self.box, capability)

    @rule(times=some_time, count=st.integers(1, 4))
    def send(self, times: int, count: int) -> None:
        delay = self._span(times) if times else 0
        bodies = [self._body() for _ in range(count)]
        ids = (
            [self.box.send(bodies[0], delay_seconds=delay)]
            if count == 1
            else self.box.send_batch(bodies, delay_seconds=delay)
        )
        for id, body in zip(ids, bodies, strict=True):
            self.model.send(id, body, delay)
        self._settle_time(delay)

    @rule(n=st.integers(0, 3))
    def send_with_an_id(self, n: int) -> None:
        id, body = f"job-{n}", self._body()
        assert self.box.send(body, message_id=id) == id
        self.model.send(id, body, 0)

    @rule(count=st.integers(1, 4), times=some_time)
    def receive(self, count: int, times: int) -> None:
        lease = self._span(times)
        got = self.box.receive(max_messages=count, visibility_timeout=lease)
        self.model.received([_delivery(message) for message in got], count, lease)
        self._settle_time(lease)

    @rule(count=st.integers(1, 4), pick=some_handle)
    @precondition(lambda self: self.model.handles)
    def acknowledge_and_receive(self, count: int, pick: int) -> None:
        handle = self._handle(pick)
        leases = self._store(
            partial(self.box.store.lease, acknowledge=[handle]), count, float(LONG_LEASE)
        )
        assert list(leases.acknowledged) == [self.model.acknowledge(handle)]
        sealer = self.box._sealer
        got = [
            DeliveredMessage(
                leased.id,
                leased.handle,
                sealer.body(sealer.open(leased.payload)),
                leased.delivery_count,
                leased.nack_count,
                leased.put_off_count,
            )
            for leased in leases.messages
        ]
        self.model.received(got, count, LONG_LEASE)

    @rule(pick=some_handle)
    @precondition(lambda self: self.model.handles)
    def acknowledge(self, pick: int) -> None:
        handle = self._handle(pick)
        answer = self._store(self.box.store.acknowledge, [handle])
        assert list(answer) == [self.model.acknowledge(handle)]

    @rule(pick=some_handle, times=some_time, how=some_way)
    @precondition(lambda self: self.model.handles)
    def release(self, pick: int, times: int, how: GivingBack) -> None:
        handle, delay = self._handle(pick), self._span(times) if times else 0
        answer = self._store(self.box.store.release, [handle], float(delay), how)
        assert list(answer) == [self.model.release(handle, delay, how)]
        self._settle_time(delay)

    @rule(pick=some_handle, times=some_time)
    @precondition(lambda self: self.model.handles)
    def extend(self, pick: int, times: int) -> None:
        handle, seconds = self._handle(pick), self._span(times)
        answer = self._store(self.box.store.extend, [handle], float(seconds))
        assert list(answer) == [self.model.extend(handle, seconds)]
        self._settle_time(seconds)

    @rule(times=st.integers(1, 4))
    @precondition(lambda self: self.contract.fake_clock)
    def let_time_pass(self, times: int) -> None:
        # Do not check the counts before the next step: reading them would promote due messages,
        # and hide a store that promotes only then.
        self.unseen = True
        self.contract.elapse(times * self.contract.moment)
        self.model.advance(times * self.contract.moment)

    @rule()
    @precondition(lambda self: len(self.model.entries) > 3)
    def purge(self) -> None:
        assert self.box.purge() == self.model.purge()

    @invariant()
    def both_agree(self) -> None:
        if hasattr(self, "box") and not self.unseen:
            self._counts_agree()
            self._pending_messages_agree()
        self.unseen = False

    def _counts_agree(self) -> None:
        stats = self.box.stats()
        counted = (stats.pending, stats.in_flight, stats.delayed)
        states = [self.model.in_state(state) for state in ("pending", "leased", "delayed")]
        assert counted == tuple(map(len, states)), "INV-1, INV-5, INV-6"

    def _pending_messages_agree(self) -> None:
        seen = self.box.peek(1000)
        pending = self.model.in_state("pending")
        assert len(seen) == len({one.id for one in seen}), "INV-8: an id is pending twice"
        assert {one.id: one.body for one in seen} == {
            id: entry.body for id, entry in pending.items()
        }, "INV-9"
        assert [one.delivery_count for one in seen] == [pending[one.id].deliveries for one in seen]

    def teardown(self) -> None:
        if hasattr(self, "box"):
            self.box.close()

    def _body(self) -> int:
        self.bodies += 1
        return self.bodies

    def _handle(self, pick: int) -> str:
        """Return one of all handles ever issued, which may have expired."""
        handles = list(self.model.handles)
        return handles[-1 - pick % len(handles)]

    def _span(self, times: int) -> float:
        """Return the length of a lease or a delay; it is short only if the test can wait for it."""
        if times and (self.contract.fake_clock or self.contract.model_expiry):
            return self.contract.moment * (times if self.contract.fake_clock else 1)
        return LONG_LEASE

    def _settle_time(self, span: float) -> None:
        """With a real clock, wait until a short lease or delay is certainly over."""
        if self.contract.model_expiry and not self.contract.fake_clock and 0 < span < LONG_LEASE:
            self.contract.elapse(span)
            self.model.advance(span)

    def _store(self, step: Any, *args: Any) -> Any:
        return self.contract.driver.call(step, *args)


def _delivery(message: Any) -> DeliveredMessage:
    return DeliveredMessage(
        message.id,
        message.receipt_handle,
        message.body,
        message.delivery_count,
        message.nack_count,
        message.put_off_count,
    )


class StateMachine(Harness):
    """The mailbox and its model agree after every step of random programs."""

    @pytest.mark.filterwarnings("default::hypothesis.errors.HypothesisWarning")
    def test_random_programs_agree_with_the_model(self) -> None:
        run_state_machine_as_test(
            partial(MailboxMachine, self),  # type: ignore[arg-type]
            settings=hypothesis.settings(
                max_examples=self.model_examples,
                stateful_step_count=25,
                deadline=None,
                database=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            ),
        )
