"""003, second half: production patterns, reliability, testing and best practices."""

import logging
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tests.seeds.stage import Box, Log, Stage, counted, delivered, fake
from tests.seeds.table import Cannot, Entry, Pieces, Run, Stop
from tests.seeds.table_003 import answered, counts, evaluating, on_redis
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxConnectionError,
    Message,
    MessageFinalizedError,
    ReceiptHandleExpiredError,
)

Names = dict[str, Any]


def routed(stage: Stage) -> Names:
    return {
        **on_redis(stage),
        "client": SimpleNamespace(region="eu-west"),
        "incoming_requests": [f"request-{n}" for n in range(50)],
        "request": SimpleNamespace(priority="high"),
    }


def prioritised(stage: Stage) -> Names:
    from tests.seeds.stage import MyRequest

    return {**on_redis(stage), "request": MyRequest("work", priority="low")}


def regional(stage: Stage) -> Names:
    return {**routed(stage), "request": "work"}


def check_canary(ns: Names) -> None:
    stable, canary = ns["stable_requests"], ns["canary_requests"]
    assert stable.approximate_count() + canary.approximate_count() == 50
    assert stable.approximate_count() > 25


def with_dead_letters(stage: Stage) -> Names:
    names = on_redis(stage)
    queue = names["RedisMailbox"](name="requests", client=names["redis_client"])
    queue.send("work", reply_to=names["responses"])
    return {**names, "process": str.upper}


def check_dead_letters(ns: Names) -> None:
    assert [message.body for message in ns["responses"].receive()] == ["WORK"]
    counts(requests=0, dead_letter=0)(ns)


def payments(stage: Stage) -> Names:
    charged: list[int] = []
    return {"Message": Message, "charge_credit_card": charged.append, "charged": charged}


def check_payments(ns: Names) -> None:
    box = Box(SimpleNamespace(amount=5))
    (message,) = box.receive()
    ns["processed_ids"].clear()
    ns["process_payment"](message)
    again = SimpleNamespace(id=message.id, body=message.body, acknowledge=lambda: True)
    ns["process_payment"](again)
    assert ns["charged"] == [5]
    assert box.approximate_count() == 0


def chunks(stage: Stage) -> Names:
    """Ten chunks of two minutes: only a lease that is extended outlives them."""
    responses = Box(name="responses")
    box = fake("task", reply_to=responses)
    return {
        "process_chunk": lambda n: box.advance(120),
        "requests": box,
        "responses": responses,
        "result": "done",
    }


def check_replied(ns: Names) -> None:
    assert ns["responses"].bodies() == ["done"]
    assert ns["requests"].approximate_count() == 0


def processing(outcome: str, log: Any = None) -> Any:
    """Requests in a mailbox whose time moves by hand, and a process that ends in this way."""

    def names(stage: Stage) -> Names:
        responses = Box(name="responses")
        box = fake("task", reply_to=responses)

        def process(body: Any) -> str:
            if outcome == "too late":
                box.advance(301)
            if outcome == "finalised":
                raise MessageFinalizedError
            if outcome == "failed":
                raise ValueError("boom")
            return "done"

        return {
            "logger": log or logging.getLogger("seed"),
            "process": process,
            "requests": box,
            "responses": responses,
        }

    return names


def check_nacked(seconds: float) -> Any:
    """Check that the message comes back after so many seconds, not before."""

    def check(ns: Names) -> None:
        box = ns["requests"]
        box.advance(seconds - 1)
        assert box.receive() == []
        box.advance(1)
        assert box.receive()[0].nack_count == 1

    return check


def still_there(ns: Names) -> None:
    assert ns["responses"].bodies() == []
    assert ns["requests"].approximate_count() == 1


def unreachable(stage: Stage) -> Names:
    slept: list[float] = []
    down = MailboxConnectionError("down")
    stage.monkeypatch.setattr(time, "sleep", slept.append)
    (message,) = Box("task").receive()
    receive = counted([down, [message], down], Stop())
    processed: list[Any] = []
    return {
        "process_message": processed.append,
        "processed": processed,
        "requests": SimpleNamespace(receive=receive),
        "slept": slept,
    }


def check_unreachable(ns: Names) -> None:
    assert ns["slept"] == [5, 5]
    assert [message.body for message in ns["processed"]] == ["task"]


def deliveries(times: int) -> Any:
    """Requests with a message that is received for the n-th time, in the block."""

    def names(stage: Stage) -> Names:
        responses = Box(name="responses")
        box, message = delivered("task", times, reply_to=responses)
        dead = Box(name="dead")
        return {
            "dead_letter_queue": dead,
            "delivered_before": box,
            "process": lambda body: "done",
            "requests": SimpleNamespace(
                receive=lambda **options: [message], approximate_count=box.approximate_count
            ),
            "responses": responses,
        }

    return names


def check_given_up(ns: Names) -> None:
    assert ns["dead_letter_queue"].bodies() == ["task"]
    assert ns["requests"].approximate_count() == 0


def doubles(stage: Stage) -> Names:
    return {"ReceiptHandleExpiredError": ReceiptHandleExpiredError, "pytest": pytest}


def takes_thirty_seconds(stage: Stage) -> Names:
    box = fake("task")
    return {"process": lambda body: box.advance(30), "requests": box}


def one_message(stage: Stage) -> Names:
    responses = Box(name="responses")
    box = fake("task", reply_to=responses)
    return {"msg": box.receive()[0], "requests": box, "responses": responses, "result": "done"}


def seen_twice(stage: Stage) -> Names:
    return {**answered("task"), "process": lambda body: "done"}


def on_redis_with_requests(stage: Stage) -> Names:
    return {**on_redis(stage), "requests": Box("task")}


def deep(stage: Stage) -> Names:
    (message,) = Box("task").receive()
    processed: list[Any] = []
    return {
        "logger": Log(),
        "process_message": processed.append,
        "processed": processed,
        "requests": SimpleNamespace(
            approximate_count=counted([5, 2000], Stop()), receive=lambda **options: [message]
        ),
    }


def check_deep(ns: Names) -> None:
    assert ns["logger"].events == ["Queue depth high: 2000"]
    assert len(ns["processed"]) == 2


def polling(stage: Stage) -> Names:
    (message,) = Box("task").receive()
    processed: list[Any] = []
    return {
        "process_message": processed.append,
        "processed": processed,
        "requests": SimpleNamespace(receive=counted([[], [message]], Stop())),
        "time": SimpleNamespace(sleep=lambda seconds: None),
    }


def check_polling(ns: Names) -> None:
    assert len(ns["processed"]) == 1


def check_shutdown(ns: Names) -> None:
    try:
        ns["cleanup"]()
        assert ns["mailbox"].closed
    finally:
        ns["coordinator"].uninstall()


def evaluation(stage: Stage) -> Names:
    """Two workers look four times for three samples: the last look need not take 20 seconds."""
    from weakincentives.evals import EvalLoop

    patient = EvalLoop.run.__kwdefaults__
    stage.monkeypatch.setattr(EvalLoop.run, "__kwdefaults__", {**patient, "wait_time_seconds": 1})
    return evaluating(stage, lambda prompt: "4")


def two_clients(stage: Stage) -> Names:
    return {
        **on_redis(stage),
        "client1": Box(name="one"),
        "client2": Box(name="two"),
        "request1": "first",
        "request2": "second",
    }


def ten_minutes(stage: Stage) -> Names:
    box = fake("task")
    return {"long_running_task": lambda: box.advance(600), "requests": box}


TABLE: dict[int, Entry] = {
    18: Run(prioritised, counts(high_priority=0, low_priority=1), needs=("redis",)),
    19: Run(with_dead_letters, check_dead_letters, needs=("redis",)),
    20: Run(regional, counts(us_east_requests=0, eu_west_requests=1), needs=("redis",)),
    21: Run(routed, check_canary, needs=("redis",)),
    22: Run(payments, check_payments),
    23: Run(chunks, check_replied),
    24: [
        Run(processing("fine"), check_replied),
        Run(processing("too late"), still_there),
        Run(processing("finalised"), still_there),
        Run(processing("failed"), check_nacked(60)),
    ],
    25: Run(unreachable, check_unreachable, raises=Stop),
    26: [
        Run(deliveries(5), check_replied),
        Run(deliveries(6), check_given_up),
    ],
    27: Cannot("half of it is Lua: msg_id .. ':handle' is no Python"),
    28: Run(),
    29: Run(on_redis, needs=("redis",)),
    30: Run(doubles),
    31: Run(evaluation, needs=("loops", "evals")),
    32: Pieces(
        (
            Run(takes_thirty_seconds, counts(requests=1), raises=ReceiptHandleExpiredError),
            Run(takes_thirty_seconds, counts(requests=0)),
        )
    ),
    33: Pieces(
        (
            Run(one_message, counts(requests=0, responses=0), raises=MessageFinalizedError),
            Run(one_message, counts(requests=0, responses=1)),
        )
    ),
    34: Pieces((Run(one_message, check_nacked(60)), Run(one_message, check_nacked(60)))),
    35: Run(seen_twice, check_replied),
    36: [
        Run(processing("fine"), check_replied),
        Run(processing("too late", Log()), still_there),
    ],
    37: Run(on_redis, counts(results=0), needs=("redis",)),
    38: Run(on_redis_with_requests, counts(dead_letter=0), needs=("redis",)),
    39: Run(deep, check_deep, raises=Stop),
    40: Pieces(
        (
            Run(polling, lambda ns: None, raises=Stop),
            Run(polling, check_polling, raises=Stop),
        )
    ),
    41: Run(lambda stage: {"mailbox": Box()}, check_shutdown, needs=("lifecycle",)),
    42: [
        Run(processing("fine"), counts(requests=0)),
        Run(processing("failed"), check_nacked(60)),
    ],
    43: Run(two_clients, counts(client1=1, client2=1), needs=("redis",)),
    44: Run(lambda stage: {"requests": Box()}, raises=InvalidParameterError),
    45: Run(ten_minutes, counts(requests=1), raises=ReceiptHandleExpiredError),
}
