"""004: dead letters."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, TypeVar
from uuid import uuid4

from tests.seeds import loops
from tests.seeds.compare import has_fields, has_methods
from tests.seeds.stage import (
    Box,
    Letter,
    Log,
    MyOutput,
    MyRequest,
    Request,
    Stage,
    counted,
    delivered,
    fake,
    stand_in,
)
from tests.seeds.table import Entry, Run, Stop
from tests.seeds.table_000 import sketch
from tests.seeds.table_003 import counts, on_redis
from weakincentives.runtime.mailbox import (
    Mailbox,
    MailboxResolver,
    MessageFinalizedError,
    RegistryResolver,
    ReplyNotAvailableError,
)

Names = dict[str, Any]


def letter(error: str = "builtins.TimeoutError", reply_to: str | None = None) -> Letter[Any]:
    body = Request(MyRequest("work"))
    return Letter(
        "message-1",
        body,
        last_error_type=error,
        dead_lettered_at=datetime.now(UTC),
        request_id=body.request_id,
        reply_to=reply_to,
    )


def sketched(stage: Stage) -> Names:
    return {
        **sketch(stage),
        "Callable": Callable,
        "DLQPolicy": stand_in("DLQPolicy"),
        "DeadLetter": Letter,
        "EvalRequest": stand_in("EvalRequest"),
        "EvalResult": stand_in("EvalResult"),
        "Evaluator": stand_in("Evaluator"),
        "SessionEvaluator": stand_in("SessionEvaluator"),
        "Heartbeat": lambda: SimpleNamespace(beat=lambda: None),
        "MailboxResolver": MailboxResolver,
        "MainLoop": stand_in("MainLoop"),
        "MainLoopConfig": stand_in("MainLoopConfig"),
        "MessageFinalizedError": MessageFinalizedError,
        "MyOutput": MyOutput,
        "MyRequest": MyRequest,
        "ReplyNotAvailableError": ReplyNotAvailableError,
        "log": Log(),
    }


def check_policy(ns: Names) -> None:
    policy = ns["DLQPolicy"](
        mailbox=Box(),
        max_delivery_count=3,
        include_errors=frozenset({KeyError}),
        exclude_errors=frozenset({TimeoutError}),
    )
    (_, second), (_, third) = delivered("x", 2), delivered("x", 3)
    assert not policy.should_dead_letter(second, ValueError())
    assert policy.should_dead_letter(second, KeyError())
    assert policy.should_dead_letter(third, ValueError())
    assert not policy.should_dead_letter(third, TimeoutError())
    if ours := loops.built("DLQPolicy"):
        has_fields(ns["DLQPolicy"], ours)
        has_methods(ns["DLQPolicy"], ours)


def check_letter(ns: Names) -> None:
    if ours := loops.built("DeadLetter"):
        has_fields(ns["DeadLetter"], ours)


def check_constructor(name: str) -> Any:
    def check(ns: Names) -> None:
        if ours := loops.built(name):
            has_methods(ns[name], ours)

    return check


def check_failure(ns: Names) -> None:
    answers, dead, request = Box(name="answers"), Box(name="dead"), Request("work")
    box = fake(request, reply_to=answers)
    self = SimpleNamespace(
        _dlq=SimpleNamespace(
            mailbox=dead, should_dead_letter=lambda message, error: message.delivery_count >= 2
        ),
        _requests=box,
    )
    self._dead_letter = lambda msg, error: ns["_dead_letter"](self, msg, error)
    ns["_handle_failure"](self, box.receive()[0], ValueError("boom"))
    assert (box.receive(), answers.bodies(), dead.bodies()) == ([], [], [])
    box.advance(60)
    ns["_handle_failure"](self, box.receive()[0], ValueError("boom"))
    (found,) = dead.bodies()
    assert (found.body, found.reply_to, found.delivery_count) == (request, "answers", 2)
    assert found.last_error_type == "builtins.ValueError"
    assert [result.error for result in answers.bodies()] == ["Dead-lettered after 2 attempts: boom"]
    assert box.approximate_count() == 0


def in_use(stage: Stage) -> Names:
    from weakincentives.adapters import RateLimitError
    from weakincentives.prompt import ValidationError

    return {
        **loops.names(),
        "Any": Any,
        "Mailbox": Mailbox,
        "MyMainLoop": loops.my_loop(),
        "MyOutput": MyOutput,
        "MyRequest": MyRequest,
        "RateLimitError": RateLimitError,
        "ValidationError": ValidationError,
        "adapter": loops.adapter(lambda prompt: MyOutput("done")),
        "dataclass": dataclass,
        "dead_letters": Box(name="requests-dlq"),
        "get_error_rate": lambda body: 0.4,
        "requests": Box(),
    }


def failing(error: type[Exception], times: int, dead: bool) -> Any:
    """Check what the policy of a block says of a message that failed so often with this error."""

    def check(ns: Names) -> None:
        _, message = delivered("x", times)
        assert ns["dlq"].should_dead_letter(message, error("boom")) is dead

    return check


def all_of(*checks: Any) -> Any:
    def check(ns: Names) -> None:
        for one in checks:
            one(ns)

    return check


def check_immediate(ns: Names) -> None:
    failing(ns["ContentPolicyViolation"], 1, True)(ns)
    failing(ValueError, 4, False)(ns)


def check_combined(ns: Names) -> None:
    failing(ns["ValidationError"], 1, True)(ns)
    failing(ns["RateLimitError"], 9, False)(ns)


def check_budget(ns: Names) -> None:
    policy = ns["ErrorBudgetPolicy"](mailbox=ns["dead_letters"], error_budget=0.3)
    _, message = delivered("x", 1)
    assert policy.should_dead_letter(message, ValueError()) is True


def check_consumer(ns: Names) -> None:
    handled: list[Any] = []
    dead = fake(letter(), letter())

    def handle(found: Any) -> None:
        handled.append(found)
        if len(handled) == 2:
            raise ValueError("boom")

    messages = counted([dead.receive(), dead.receive()], Stop())
    try:
        ns["process_dead_letters"](SimpleNamespace(receive=messages), handler=handle)
    except Stop:
        pass
    assert len(handled) == 2
    assert ns["log"].events == ["DLQ handler failed"]
    assert dead.receive() == []
    dead.advance(3600)
    assert len(dead.receive()) == 1


def alerting(stage: Stage) -> Names:
    counted_, paged = list[Any](), list[Any]()
    return {
        **sketched(stage),
        "counted": counted_,
        "is_critical_request": lambda body: True,
        "metrics": SimpleNamespace(increment=lambda name, **tags: counted_.append(name)),
        "paged": paged,
        "pagerduty": SimpleNamespace(alert=lambda **alert: paged.append(alert["severity"])),
        "process_dead_letter": lambda found: 1 / 0,
        "T": TypeVar("T"),
    }


def check_alert(ns: Names) -> None:
    ns["alert_handler"](letter())
    assert (ns["counted"], ns["paged"]) == (["dlq.messages"], ["high"])
    assert ns["log"].events == ["Request dead-lettered"]


def check_replay(ns: Names) -> None:
    answers, source = Box(name="answers"), Box()
    dead = letter(reply_to="answers")
    ns["replay_handler"](dead, source=source, reply_resolver=RegistryResolver({"answers": answers}))
    (message,) = source.receive()
    assert (message.body, message.reply_to) == (dead.body, answers)


def selective(stage: Stage) -> Names:
    source = Box()
    dead = Box(letter(), letter("builtins.ValueError"), letter(), name="dead")
    return {
        **sketched(stage),
        "dead_letters": dead,
        "replay_handler": lambda found, *, source, reply_resolver: source.send(found.body),
        "requests": source,
        "resolver": RegistryResolver({}),
    }


def check_selective(ns: Names) -> None:
    assert ns["count"] == 2
    assert ns["requests"].approximate_count() == 2
    (left,) = ns["dead_letters"].bodies()
    assert left.last_error_type == "builtins.ValueError"


def logging_(stage: Stage) -> Names:
    box = Box(Request("work"))
    (message,) = box.receive()
    return {
        **sketched(stage),
        "dead_letter": letter(),
        "error": ValueError("boom"),
        "msg": message,
        "request": message.body,
        "source": box,
    }


def check_logging(ns: Names) -> None:
    assert ns["log"].events == ["Message dead-lettered", "Processing dead letter"]


def check_health(ns: Names) -> None:
    assert ns["health_check"]() == {
        "status": "healthy",
        "dlq": {"name": "requests-dlq", "depth": 1, "threshold": 100},
    }


def group(stage: Stage) -> Names:
    """A group whose health server takes any port, and which is told to end when it runs."""
    from weakincentives import evals, runtime

    def handle(found: Any) -> None:
        stage.background(lambda: stage.namespace["group"].shutdown(timeout=20))

    def loop_group(loops: Any, *, health_port: int, watchdog_threshold: float) -> Any:
        assert health_port == 8080
        return real(loops, health_port=0, watchdog_threshold=watchdog_threshold)

    real = runtime.LoopGroup
    stage.monkeypatch.setattr(runtime, "LoopGroup", loop_group)
    names = in_use(stage)
    dead = names["dead_letters"]
    found = letter()
    dead.send(names["DeadLetter"](**{**vars(found), "first_received_at": found.dead_lettered_at}))
    one = names["MyMainLoop"](adapter=names["adapter"], requests=Box(name="main"))
    other = evals.EvalLoop(loop=one, evaluator=evals.exact_match, requests=Box(name="eval"))
    return {**names, "alert_handler": handle, "main_loop": one, "eval_loop": other}


def check_dlq_consumer(ns: Names) -> None:
    handled: list[Any] = []
    dead = Box(letter(), name="dead")
    consumer = ns["DLQConsumer"](mailbox=dead, handler=handled.append)
    consumer.run(max_iterations=1)
    assert len(handled) == 1
    assert dead.approximate_count() == 0
    if ours := loops.built("DLQConsumer"):
        has_methods(ns["DLQConsumer"], ours)


def check_safe(ns: Names) -> None:
    ns["safe_dlq_handler"](letter())
    assert ns["counted"] == ["dlq.messages.discarded"]


def check_dedup(ns: Names) -> None:
    source, dead, seen = Box(), letter(), {uuid4()}
    assert ns["replay_with_dedup"](dead, source, seen) is True
    assert ns["replay_with_dedup"](dead, source, seen) is False
    assert source.bodies() == [dead.body]


TABLE: dict[int, Entry] = {
    0: Run(in_use, needs=("loops", "dlq")),
    1: Run(sketched, check_policy),
    2: Run(sketched, check_letter),
    3: Run(sketched, check_constructor("MainLoop")),
    4: Run(sketched, check_failure),
    5: Run(sketched, check_constructor("EvalLoop")),
    6: Run(
        lambda stage: {**in_use(stage), **on_redis(stage)},
        counts(requests=0, dead_letters=0),
        needs=("redis", "loops", "dlq", "runtime"),
    ),
    7: Run(in_use, check_immediate, needs=("loops", "dlq")),
    8: Run(in_use, failing(TimeoutError, 9, False), needs=("loops", "dlq")),
    9: Run(in_use, check_combined, needs=("loops", "dlq")),
    10: Run(in_use, check_budget, needs=("loops", "dlq")),
    11: Run(sketched, check_consumer),
    12: Run(alerting, check_alert),
    13: Run(sketched, check_replay),
    14: Run(selective, check_selective),
    15: Run(logging_, check_logging),
    16: Run(
        lambda stage: {"Any": Any, "dead_letters": Box(letter(), name="requests-dlq")},
        check_health,
    ),
    17: Run(group, counts(dead_letters=0), needs=("loops", "dlq", "lifecycle")),
    18: Run(sketched, check_dlq_consumer),
    19: Run(on_redis, counts(requests=0, eval_dlq=0), needs=("redis",)),
    20: Run(on_redis, counts(requests=0, dead_letters=0), needs=("redis",)),
    21: Run(alerting, check_safe),
    22: Run(sketched, check_dedup),
}
