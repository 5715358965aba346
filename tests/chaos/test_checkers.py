"""Each checker finds the violation that was planted, and nothing in a history that is right."""

import json
import math
from pathlib import Path

import pytest

from chaos import checkers
from chaos.checkers import Snapshot
from chaos.history import Log, Op, read
from weakincentives.runtime.mailbox.errors import MailboxConnectionError, MailboxFullError


def send(id, start, end=None, outcome="ok", delay=0.0):
    return Op("s", "send", id, "", outcome, start, start + 0.1 if end is None else end, delay)


def receive(id, start, count=1, lease=10.0, client="a", end=None, outcome="ok", place=0):
    end = start + 0.1 if end is None else end
    return Op(client, "receive", id, f"{id}.{count}", outcome, start, end, lease, count, place)


def settle(op, id, start, count=1, outcome="ok", seconds=0.0, client="a"):
    return Op(client, op, id, f"{id}.{count}", outcome, start, start + 0.1, seconds)


GOOD = [
    send("m", 0),
    send("n", 1),
    send("late", 1.5, delay=5),
    receive("m", 2),
    receive("n", 3),
    settle("extend", "m", 8, seconds=10),
    settle("ack", "m", 17),
    receive("late", 7),
    settle("nack", "late", 8),
    receive("late", 9, count=2),
    settle("ack", "late", 10, count=2),
    receive("n", 13.2, count=2, client="b"),
    settle("ack", "n", 13.5, outcome="failed"),
    settle("ack", "n", 14, count=2, client="b"),
]


def test_a_history_that_is_right() -> None:
    assert checkers.lost(GOOD, remaining=()) == []
    assert checkers.duplicates(GOOD) == []
    assert checkers.fenced(GOOD) == []
    assert checkers.undone(GOOD) == []
    assert checkers.first_in_first_out(GOOD) == []
    assert checkers.drained(GOOD, healed=10, within=10) == []


def test_loss() -> None:
    ops = [send("m", 0), send("n", 0), send("o", 0), send("p", 0), send("q", 0, outcome="unknown")]
    ops += [receive("n", 1), settle("ack", "n", 2), receive("m", 1), settle("nack", "m", 2)]
    assert checkers.lost(ops, remaining={"o"}, dead={"p"}) == ["lost: m, sent by s"]
    # An acknowledgement that may have happened explains that the message is gone.
    maybe = [*ops, settle("ack", "m", 3, outcome="unknown")]
    assert checkers.lost(maybe, remaining={"o"}, dead={"p"}) == []
    assert checkers.lost([*ops, settle("ack", "m", 3, outcome="failed")], {"o"}, {"p"})


def test_a_purge_explains_only_what_was_sent_before_its_end() -> None:
    purge = Op("a", "purge", "", "", "ok", 1, 2)
    assert checkers.lost([send("m", 0.5), purge], ()) == []
    assert checkers.lost([purge, send("m", 2.5)], ()) == ["lost: m, sent by s"]


def test_a_duplicate_during_the_lease() -> None:
    ops = [send("m", 0), receive("m", 1), receive("m", 2, count=2, client="b")]
    assert len(checkers.duplicates(ops)) == 1
    assert len(checkers.fenced(ops)) == 1


@pytest.mark.parametrize(
    "reason",
    [
        settle("nack", "m", 1.5),
        settle("nack", "m", 1.5, outcome="unknown"),
        Op("b", "receive", "", "", "unknown", 1.5, math.inf),
        Op("b", "lost receive", "", "", "ok", 1.5, 1.5),
    ],
)
def test_a_duplicate_that_is_explained(reason: Op) -> None:
    ops = [send("m", 0), receive("m", 1), reason, receive("m", 2, count=2, client="b")]
    assert checkers.duplicates(ops) == []


def test_one_reason_explains_one_duplicate() -> None:
    ops = [
        send("m", 0),
        receive("m", 1),
        settle("nack", "m", 1.5),
        receive("m", 2, count=2),
        receive("m", 3, count=3),
    ]
    assert len(checkers.duplicates(ops)) == 1


def test_deliveries_that_only_the_count_shows() -> None:
    assert len(checkers.duplicates([send("m", 0), receive("m", 1, count=3)])) == 1


def test_a_stale_ack_after_the_next_delivery() -> None:
    ops = [
        send("m", 0),
        receive("m", 1, lease=1),
        receive("m", 3, count=2, client="b"),
        settle("ack", "m", 4),
    ]
    assert "after its next delivery" in checkers.fenced(ops)[0]
    assert checkers.fenced(ops, jumps=True)
    assert checkers.fenced([*ops[:-1], settle("ack", "m", 4, outcome="failed")]) == []


@pytest.mark.parametrize("op", ["ack", "nack", "extend"])
def test_a_settlement_after_the_lease(op: str) -> None:
    ops = [send("m", 0), receive("m", 1, lease=1), settle(op, "m", 2.2, seconds=1)]
    assert len(checkers.fenced(ops)) == 1
    assert checkers.fenced(ops, jumps=True) == []


def test_an_extension_keeps_the_lease() -> None:
    ops = [send("m", 0), receive("m", 1, lease=1), settle("extend", "m", 1.5, seconds=5)]
    assert checkers.fenced([*ops, settle("ack", "m", 6)]) == []
    assert checkers.fenced([*ops, settle("ack", "m", 7)])
    assert checkers.fenced([*ops, receive("m", 4, count=2, client="b")])


def test_a_handle_that_nobody_was_given() -> None:
    assert "nobody" in checkers.fenced([send("m", 0), settle("ack", "m", 1)])[0]


def test_a_delivery_after_the_acknowledgement() -> None:
    ops = [send("m", 0), receive("m", 1, lease=1), settle("ack", "m", 1.5)]
    assert checkers.undone([*ops, receive("m", 3, count=2)])
    assert checkers.undone(ops) == []


def test_order_of_first_deliveries() -> None:
    ops = [send("m", 0), send("n", 1), receive("n", 2), receive("m", 3)]
    assert len(checkers.first_in_first_out(ops)) == 1
    # Sends that overlap, redeliveries and delayed messages may come in any order.
    assert checkers.first_in_first_out([send("m", 0, 1.05), *ops[1:]]) == []
    assert checkers.first_in_first_out([*ops[:3], receive("m", 3, count=2)]) == []
    assert checkers.first_in_first_out([send("m", 0, delay=9), *ops[1:]]) == []


def test_order_within_one_receive() -> None:
    sends = [send("m", 0), send("n", 1)]
    right = [receive("m", 2, place=0), receive("n", 2, place=1)]
    wrong = [receive("n", 2, place=0), receive("m", 2, place=1)]
    assert checkers.first_in_first_out(sends + right) == []
    assert len(checkers.first_in_first_out(sends + wrong)) == 1


def test_exclusivity() -> None:
    assert checkers.exclusive(Snapshot(["a"], ["b"], ["c"], {"a", "b", "c"})) == []
    assert len(checkers.exclusive(Snapshot(["a", "a"], [], []))) == 1
    assert len(checkers.exclusive(Snapshot(["a"], ["a"], []))) == 1
    assert len(checkers.exclusive(Snapshot(["a"], [], [], set()))) == 1
    assert len(checkers.exclusive(Snapshot([], [], [], {"a"}))) == 1


def test_drained_too_late() -> None:
    assert checkers.drained(GOOD, healed=10, within=5)
    assert checkers.drained(GOOD, healed=10, within=10, remaining=["m"])


def test_recoveries_count_from_the_fault_to_the_next_delivery() -> None:
    kill = Op("runner", "kill", "a", "", "ok", 2, 2)
    ops = [receive("m", 1, lease=3), kill, receive("m", 4.4, count=2, client="b")]
    assert checkers.recoveries(ops) == [pytest.approx(2.5)]
    assert checkers.recoveries([ops[0], settle("ack", "m", 1.5), *ops[1:]]) == []


def test_a_message_that_was_added_again_lives_twice() -> None:
    once = [send("m", 0), receive("m", 1), settle("ack", "m", 2)]
    again = receive("m", 3, client="b")._replace(handle="m.again")
    ops = [*once, again, again._replace(op="ack", start=4, end=4.1)]
    assert checkers.undone(checkers.lives(ops)[0])  # without a reason it is a violation
    resend = Op("s", "resend", "m", "", "ok", 2.5, 2.6)
    told, lives = checkers.lives(sorted([*ops, resend], key=lambda op: op.start))
    assert lives == 1
    assert checkers.undone(told) == checkers.duplicates(told) == checkers.fenced(told) == []
    assert checkers.lives(once) == (once, 0)


def test_percentiles() -> None:
    assert checkers.percentiles([]) == {}
    assert checkers.percentiles(range(1, 101)) == {"p50": 50, "p99": 99, "max": 100}


def test_a_log_remembers_what_nobody_heard_the_end_of(tmp_path: Path) -> None:
    log = Log(tmp_path, "a")
    with log.operation("receive", [("", "")], 30) as call:
        call.got = [("m", "h", 1), ("n", "i", 2)]
    with log.operation("ack", [("m", "h"), ("n", "i")]) as call:
        call.outcomes = ["ok", "failed"]
    for error in (MailboxConnectionError(), MailboxFullError()):
        with pytest.raises(type(error)), log.operation("send", [("o", "")]):
            raise error
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write(
            json.dumps({"n": 1, "c": "a", "op": "nack", "of": [["n", "i"]], "s": 0, "t": 9e9})
        )
        file.write('\n{"n": 1, "c": "a", "t": 9e9')  # killed while it wrote this
    ops = read(tmp_path)
    log.close()
    assert [(op.op, op.id, op.handle, op.outcome, op.count) for op in ops] == [
        ("receive", "m", "h", "ok", 1),
        ("receive", "n", "i", "ok", 2),
        ("ack", "m", "h", "ok", 0),
        ("ack", "n", "i", "failed", 0),
        ("send", "o", "", "unknown", 0),
        ("send", "o", "", "failed", 0),
        ("nack", "n", "i", "unknown", 0),
    ]
    assert ops[-1].end == math.inf
