"""Every planted bug is caught by a scenario or a checker; the list is what this file runs."""

import itertools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chaos import checkers
from chaos.history import Log, read
from chaos.interleavings import ALPHABET, BEYOND, Stand, Step, check_program, explore
from chaos.planted import PLANTS
from chaos.recording import RecordedStore
from chaos.scenarios import all_scenarios
from chaos.scenarios.agreement import memory_stand
from chaos.scenarios.limits import broken_promises
from chaos.snapshots import of_redis
from testkit.servers import Standalone, servers_available
from tests.chaos.seed_scripts import SeedStore
from tests.contract.mutants import MUTANTS
from tests.services import missing
from weakincentives.contrib.mailbox.sqlite import SQLiteStore, store
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox.memory.store import InMemoryStore
from weakincentives.runtime.mailbox.seam.loop import LoopStore
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

SCENARIOS = all_scenarios()


@pytest.fixture(scope="module")
def server() -> Iterator[Standalone]:
    available = servers_available()
    if not available:
        missing("neither redis-server nor valkey-server was found")
    with Standalone(next(iter(available.values()))) as server:
        yield server


# The foundation's mutants, in memory.


def found_in_memory(store_class: Any) -> list[str]:
    def make(**options: Any) -> tuple[Any, FakeClock]:
        clock = FakeClock()
        return store_class("jobs", clock=clock, **options), clock

    return explore(5, partial(memory_stand, store_class))[2] or broken_promises(make)


def test_nothing_is_found_in_the_unbroken_store() -> None:
    assert found_in_memory(InMemoryStore) == []


# What the explored programs do not do: give back uncounted, or come back to ids after a purge or
# minutes later. The contract catches these.
ELSEWHERE = {
    "DeleteKeepsIds",
    "DeleteNeedsNoForce",
    "PurgeKeepsIds",
    "PutOffNotCounted",
    "SequelsForgotten",
    "UndoneCounts",
    "UndoneForgetsTheNacks",
    "UndoneGoesToTheBack",
    "UndoneLosesDelay",
}


@pytest.mark.parametrize("mutant", sorted(set(MUTANTS) - ELSEWHERE))
def test_a_mutant_of_the_foundation_is_caught(mutant: str) -> None:
    assert found_in_memory(MUTANTS[mutant])


# The scripts that the seeds print.


@pytest.fixture
def seeds(server: Standalone) -> Iterator[SeedStore]:
    with server.client() as client:
        client.flushall()
        yield SeedStore(client, "seed")


def test_the_seeds_accept_stale_handles(server: Standalone) -> None:
    numbers = itertools.count()
    with server.client() as client:

        def make() -> Stand:
            seeds = SeedStore(client, f"s{next(numbers)}")

            def pass_time() -> None:
                seeds.shift += BEYOND

            return Stand(seeds, pass_time)

        assert explore(4, make)[2]
        stale = [Step(0, "send"), Step(0, "receive"), Step(0, "expire"), Step(1, "receive")]
        problem = check_program(make(), [*stale, Step(0, "ack")])
    assert "the store says [True], the model False" in problem


def test_two_reapers_of_the_seeds_double_a_message(seeds: SeedStore) -> None:
    driven(seeds.put([Outgoing("m", b"1")]))
    driven(seeds.lease(1, 10))
    seeds.shift += 20
    slow = seeds.expired()
    seeds.reap()
    seeds.bring_back(slow)
    assert "m is pending and pending" in checkers.exclusive(of_redis(seeds.client, "seed"))[0]


def test_a_crash_between_pop_and_lease_of_the_seeds_loses_a_message(
    seeds: SeedStore, tmp_path: Path
) -> None:
    log = Log(tmp_path, "sender")
    seeds.limits = seeds.capabilities = seeds.clock = seeds.look_interval = None  # type: ignore[attr-defined]
    seeds.steps = seeds.close = None  # type: ignore[attr-defined]
    driven(RecordedStore(seeds, log).put([Outgoing("m", b"1")]))
    seeds.pop_then_lease(10, crash=True)
    log.close()
    left = of_redis(seeds.client, "seed")
    assert checkers.lost(read(tmp_path), left.ids) == ["lost: m, sent by sender"]
    assert checkers.exclusive(left) == ["ghost: payload of m is in no state"]


# The SQL.


@pytest.fixture
def sqlite_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(store, "QUERIES", dict(store.QUERIES))
    clock, numbers = FakeClock(), itertools.count()
    database = open_database(tmp_path / "box.db", "normal", clock=clock, boot_id="one boot")
    yield lambda: Stand(SQLiteStore(database, f"q{next(numbers)}"), lambda: clock.advance(BEYOND))
    database.close()


# Both are among the programs of the full scale, which has all of six steps.
A_PLACE_USED_AGAIN = ("send", "receiveA", "ackA", "send", "receiveB", "ackA")
AN_EXPIRED_LEASE = ("send", "receiveA", "expire", "ackA")


@pytest.mark.parametrize(
    ("plant", "program"),
    [("handle_not_compared", A_PLACE_USED_AGAIN), ("expiry_not_checked", AN_EXPIRED_LEASE)],
)
def test_a_bug_in_the_sql_is_caught(
    plant: str, program: tuple[str, ...], sqlite_stand: Any
) -> None:
    steps = [next(step for step in ALPHABET if str(step) == name) for name in program]
    assert check_program(sqlite_stand(), steps) == ""
    PLANTS[plant]()
    assert "the model False" in check_program(sqlite_stand(), steps)


# Those that need a process, and its death.


@pytest.mark.parametrize(
    ("plant", "scenario", "finding"),
    [
        ("no_transaction", "sqlite.kill_at_every_statement.sqlite", "is pending and leased"),
        ("ack_before_reply", "workers.kill_between_reply_and_ack.sqlite", "replies: "),
        ("ack_before_reply", "workers.kill_between_reply_and_ack.redis", "replies: "),
        (
            "replies_without_an_id",
            "workers.kill_between_reply_and_ack.redis",
            "replies: 2 to request",
        ),
        (
            "ack_before_dead_letter",
            "workers.kill_between_dead_letter_and_ack.sqlite",
            "has no dead letter",
        ),
        (
            "only_the_job_at_work_is_kept",
            "workers.batch_waiting_its_turn.sqlite",
            "delivered again while their worker lived",
        ),
        (
            "beats_by_the_wall_clock",
            "clocks.process_clock_jumps.sqlite",
            "delivered again while their worker lived",
        ),
        (
            "nothing_given_back",
            "interrupts.worker_interrupted_again_and_again.sqlite",
            "innocent, and given up",
        ),
        ("failures_untold", "callers.callers_under_kills.sqlite", "never answered"),
        ("owner_not_compared", "callers.replays_against_redeliveries.sqlite", "no answer"),
        ("settled_replies_change", "callers.cancels_against_completions.sqlite", "returned True"),
        ("parts_counted_anew", "callers.readers_of_parts.sqlite", "parts: "),
        ("one_thread_for_all_leases", "pairs.one_of_two_hangs.redis/sqlite", "lease lost"),
    ],
)
def test_a_bug_in_a_process_is_caught(plant: str, scenario: str, finding: str) -> None:
    result = SCENARIOS[scenario](1, "short", plant)
    if result.not_run:
        missing(result.not_run)
    assert [text for text in result.violations if finding in text]


def test_a_cancelled_receive_that_keeps_its_leases_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def keep(store: Any, look: Any) -> None:
        await look

    monkeypatch.setattr(LoopStore, "_give_back", keep)
    result = SCENARIOS["tasks.cancellation_storm.sqlite"](1, "short")
    assert [text for text in result.violations if text.startswith("kept: ")]


def test_every_planted_bug_is_in_this_list() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in PLANTS if f'"{name}"' not in text] == []
