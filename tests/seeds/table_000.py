"""000: the first generation of the mailbox specification."""

import time
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Generic, Protocol
from uuid import UUID, uuid4

import pytest
from typing_extensions import TypeVar

from tests.seeds import loops
from tests.seeds.compare import has_fields, has_methods, same_bases
from tests.seeds.stage import (
    Box,
    Event,
    Log,
    MyOutput,
    MyRequest,
    Request,
    Result,
    Stage,
    delivered,
    fake,
    stand_in,
)
from tests.seeds.table import Entry, Run
from weakincentives.dataclasses import FrozenDataclass
from weakincentives.errors import WinkError
from weakincentives.runtime import mailbox
from weakincentives.runtime.mailbox import (
    CollectingMailbox,
    FakeMailbox,
    InMemoryMailbox,
    Mailbox,
    MailboxConnectionError,
    Message,
    NullMailbox,
    ReceiptHandleExpiredError,
)

T = TypeVar("T")
R = TypeVar("R", default=None)
Names = dict[str, Any]


def sketch(stage: Stage) -> Names:
    """Names that sketches of classes take for granted."""
    return {
        "ABC": ABC,
        "Any": Any,
        "Budget": stand_in("Budget"),
        "Deadline": stand_in("Deadline"),
        "FrozenDataclass": FrozenDataclass,
        "Generic": Generic,
        "MainLoopRequest": Request,
        "MainLoopResult": Result,
        "Mailbox": Mailbox,
        "Mapping": Mapping,
        "Message": Message,
        "OutputT": TypeVar("OutputT"),
        "PromptResponse": stand_in("PromptResponse"),
        "Protocol": Protocol,
        "ProviderAdapter": stand_in("ProviderAdapter"),
        "R": R,
        "ResourceRegistry": stand_in("ResourceRegistry"),
        "Sequence": Sequence,
        "T": T,
        "UTC": UTC,
        "UUID": UUID,
        "UserRequestT": TypeVar("UserRequestT"),
        "WinkError": WinkError,
        "dataclass": dataclass,
        "datetime": datetime,
        "field": field,
        "uuid4": uuid4,
    }


def check_message(ns: Names) -> None:
    has_fields(ns["Message"], Message)
    has_methods(ns["Message"], Message)


def check_request(ns: Names) -> None:
    made = ns["MainLoopRequest"][int](request=7)
    assert made.request == 7
    if ours := loops.built("MainLoopRequest"):
        has_fields(ns["MainLoopRequest"], ours)


def check_result(ns: Names) -> None:
    if ours := loops.built("MainLoopResult"):
        has_fields(ns["MainLoopResult"], ours, but=frozenset({"response"}))  # output, as 002 says


def check_constructor(ns: Names) -> None:
    if ours := loops.built("MainLoop"):
        has_methods(ns["MainLoop"], ours)


def check_run(ns: Names) -> None:
    request, responses, failed = Request("work"), Box(name="responses"), []
    self = SimpleNamespace(
        _requests=Box(request),
        _responses=responses,
        _execute=lambda body: (f"did {body.request}", SimpleNamespace(session_id=uuid4())),
        _handle_failure=lambda msg, error: failed.append(error),
    )
    ns["run"](self, max_iterations=1)
    (result,) = responses.bodies()
    assert (result.request_id, result.response, failed) == (request.request_id, "did work", [])
    assert self._requests.approximate_count() == 0


def check_failure(ns: Names) -> None:
    responses = Box(name="responses")
    box = fake(Request("work"))
    (message,) = box.receive()
    ns["_handle_failure"](SimpleNamespace(_responses=responses), message, ValueError("boom"))
    assert [result.error for result in responses.bodies()] == ["boom"]
    assert box.approximate_count() == 0

    box.send(Request("work"))
    (message,) = box.receive()
    responses.close()
    ns["_handle_failure"](SimpleNamespace(_responses=responses), message, ValueError("boom"))
    assert box.receive() == []
    box.advance(60)
    assert box.receive()[0].nack_count == 1


def client(stage: Stage) -> Names:
    request_id, requests, responses = uuid4(), Box(), Box(name="responses")
    stage.serve(requests, lambda body: None, 1)
    for id in (uuid4(), request_id):
        responses.send(Result(request_id=id, response=f"answer to {id}"))
    return {
        "MainLoopRequest": Request,
        "RemoteError": RuntimeError,
        "my_request": "work",
        "request_id": request_id,
        "requests": requests,
        "responses": responses,
        "time": time,
        "timeout_seconds": 30,
        "uuid4": lambda: request_id,
    }


def check_client(ns: Names) -> None:
    assert ns["returned"] == f"answer to {ns['request_id']}"
    assert len(ns["responses"].bodies()) == 1  # the other client's, given back


def processing(stage: Stage) -> Names:
    processed: list[Any] = []
    return {"mailbox": Box("a", "b", "c"), "process": processed.append, "processed": processed}


def check_processed(ns: Names) -> None:
    assert [message.body for message in ns["processed"]] == ["a", "b", "c"]
    assert ns["mailbox"].approximate_count() == 0


class Stocked(FakeMailbox[T, R], Generic[T, R]):
    """A FakeMailbox with the message that the document receives without having sent one."""

    def __init__(self) -> None:
        super().__init__()
        self.send(Event(type="stocked"))  # type: ignore[arg-type]


def too_often(stage: Stage) -> Names:
    box, message = delivered("poison", 6)
    return {"msg": message, "box": box, "log": Log(), "dead_letter_mailbox": Box(name="dead")}


def check_too_often(ns: Names) -> None:
    assert ns["dead_letter_mailbox"].bodies() == ["poison"]
    assert ns["box"].approximate_count() == 0
    assert ns["log"].events == ["Message exceeded retry limit"]


def awaited(ns: Names) -> None:
    assert [message.body for message in ns["messages"]] == ["b"]


def main_loop(stage: Stage) -> Names:
    return {
        **loops.names(),
        "InMemoryMailbox": InMemoryMailbox,
        "MyLoop": loops.my_loop(),
        "MyOutput": MyOutput,
        "MyRequest": MyRequest,
        "adapter": loops.adapter(lambda prompt: MyOutput("done")),
        "uuid4": uuid4,
    }


def on_redis(stage: Stage) -> Names:
    from weakincentives.contrib.mailbox import RedisMailbox

    return {"RedisMailbox": RedisMailbox}


def on_sqs(stage: Stage) -> Names:
    import boto3

    from weakincentives.contrib.mailbox import SQSMailbox

    client = boto3.client("sqs", "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    stage.monkeypatch.setattr(boto3, "client", lambda service: client)
    stage.later(client.close)
    return {"SQSMailbox": SQSMailbox}


TABLE: dict[int, Entry] = {
    0: Run(sketch, lambda ns: has_methods(ns["Mailbox"], Mailbox)),
    1: Run(sketch, check_message),
    2: Run(sketch, check_constructor),
    3: Run(sketch, check_request),
    4: Run(sketch, check_result),
    5: Run(sketch, check_run),
    6: Run(sketch, check_failure),
    7: Run(client, check_client, inside="function"),
    8: Run(
        lambda stage: {"Mailbox": Mailbox, "InMemoryMailbox": InMemoryMailbox, "MyEvent": Event}
    ),
    9: Run(),  # the reaper that we do without: the definition is all there is to run
    10: Run(),
    11: Run(on_redis, lambda ns: ns["mailbox"].send("x"), needs=("redis",)),
    12: Run(on_sqs, lambda ns: ns["mailbox"].close(), needs=("aws",)),
    13: Run(lambda stage: {"mailbox": Box("a", "b")}, awaited),
    14: Run(processing, check_processed),
    15: Run(processing, check_processed),
    16: Run(sketch, lambda ns: same_bases(ns, mailbox, "seed_000_16")),
    17: Run(lambda stage: {"Mailbox": Mailbox, "NullMailbox": NullMailbox, "Event": Event}),
    18: Run(lambda stage: {"CollectingMailbox": CollectingMailbox, "Event": Event}),
    19: Run(
        lambda stage: {
            "Event": Event,
            "FakeMailbox": Stocked,
            "MailboxConnectionError": MailboxConnectionError,
            "ReceiptHandleExpiredError": ReceiptHandleExpiredError,
            "pytest": pytest,
        }
    ),
    20: Run(main_loop, needs=("loops",)),
    21: Run(too_often, check_too_often),
}
