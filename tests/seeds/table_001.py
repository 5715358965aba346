"""001: the second generation of the mailbox specification, with replies as futures."""

from types import SimpleNamespace
from typing import Any

from tests.seeds import loops
from tests.seeds.compare import has_fields, has_methods, same_bases
from tests.seeds.stage import Box, Request, Stage
from tests.seeds.table import Entry, Run
from tests.seeds.table_000 import sketch
from weakincentives.runtime import mailbox
from weakincentives.runtime.mailbox import (
    Mailbox,
    Message,
    Reply,
    ReplyChannel,
    ReplyEntry,
    ReplyState,
    ReplyStore,
)

Names = dict[str, Any]


def replies(stage: Stage) -> Names:
    return {
        **sketch(stage),
        "Reply": Reply,
        "ReplyChannel": ReplyChannel,
        "ReplyEntry": ReplyEntry,
        "ReplyState": ReplyState,
    }


def check_message(ns: Names) -> None:
    has_fields(ns["Message"], Message)
    has_methods(ns["Message"], Message)


def check_reply(ns: Names) -> None:
    has_fields(ns["Reply"], Reply)
    has_methods(ns["Reply"], Reply)


def check_store(ns: Names) -> None:
    has_methods(ns["ReplyStore"], ReplyStore)
    has_fields(ns["ReplyEntry"], ReplyEntry)
    # The seed's four; a failed job's caller is told of a fifth.
    assert {state.value for state in ReplyState} >= {"pending", "resolved", "cancelled", "expired"}


class Once:
    """True the first time."""

    def __init__(self) -> None:
        self.asked = 0

    def __bool__(self) -> bool:
        self.asked += 1
        return self.asked == 1


def check_loop(ns: Names) -> None:
    box = Box()
    reply = box.send_expecting_reply(Request("work"))
    self = SimpleNamespace(_requests=box, _execute=lambda body: f"did {body.request}")
    ns["MainLoop"].run(self)
    assert reply.wait(timeout=120) == "did work"
    assert box.approximate_count() == 0
    if ours := loops.built("MainLoop"):
        has_methods(ns["MainLoop"], ours)


def client(stage: Stage) -> Names:
    box = Box()
    stage.serve(box, lambda body: f"did {body.request}", 2)
    return {
        "MainLoopRequest": Request,
        "background_task": "later",
        "mailbox": box,
        "my_request": "work",
    }


def check_client(ns: Names) -> None:
    assert ns["result"] == "did work"


TABLE: dict[int, Entry] = {
    0: Run(replies, lambda ns: has_methods(ns["Mailbox"], Mailbox)),
    1: Run(replies, check_message),
    2: Run(replies, check_reply),
    3: Run(replies, lambda ns: has_methods(ns["ReplyChannel"], ReplyChannel)),
    4: Run(replies, check_store),
    5: Run(lambda stage: {**sketch(stage), "should_continue": Once()}, check_loop),
    6: Run(client, check_client),
    7: Run(sketch, lambda ns: same_bases(ns, mailbox, "seed_001_7")),
}
