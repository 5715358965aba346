"""002: leases that extend themselves."""

import logging
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from tests.seeds import loops
from tests.seeds.compare import has_fields, has_methods
from tests.seeds.stage import Box, MyRequest, Request, Stage, stand_in
from tests.seeds.table import Entry, Run
from tests.seeds.table_000 import sketch
from weakincentives.runtime.mailbox import InMemoryMailbox, Message, ReceiptHandleExpiredError

Names = dict[str, Any]


@dataclass(frozen=True)
class Config:
    """Stands for LeaseExtenderConfig."""

    interval: float = 0.005
    extension: int = 300
    enabled: bool = True


def check_config(ns: Names) -> None:
    if ours := loops.built("LeaseExtenderConfig"):
        has_fields(ns["LeaseExtenderConfig"], ours)


def extender(stage: Stage) -> Names:
    return {
        "Any": Any,
        "Generator": Generator,
        "LeaseExtenderConfig": Config,
        "Message": Message,
        "ReceiptHandleExpiredError": ReceiptHandleExpiredError,
        "_logger": logging.getLogger("seed"),
        "contextmanager": contextmanager,
        "threading": threading,
    }


class Beating:
    """A message that counts how often its lease is extended."""

    id = "beating"

    def __init__(self, error: type[Exception] | None = None) -> None:
        self.extend_visibility_calls = 0
        self.twice = threading.Event()
        self._error = error

    def extend_visibility(self, timeout: float) -> bool:
        self.extend_visibility_calls += 1
        if self._error is not None:
            raise self._error
        if self.extend_visibility_calls >= 2:
            self.twice.set()
        return True


def check_extender(ns: Names) -> None:
    message = Beating()
    with ns["LeaseExtender"]().extend(message):
        assert message.twice.wait(120)
    if ours := loops.built("LeaseExtender"):
        has_methods(ns["LeaseExtender"], ours)


def check_loop_config(ns: Names) -> None:
    if ours := loops.built("MainLoopConfig"):
        has_fields(ns["MainLoopConfig"], ours)


def with_extender(stage: Stage) -> Names:
    return {
        **sketch(stage),
        "LeaseExtender": stand_in("LeaseExtender"),
        "LeaseExtenderConfig": Config,
        "MainLoopConfig": stand_in("MainLoopConfig"),
    }


def check_constructor(ns: Names) -> None:
    if ours := loops.built("MainLoop"):
        has_methods(ns["MainLoop"], ours)


def check_handling(ns: Names) -> None:
    settled: list[Any] = []
    session, request = SimpleNamespace(session_id=uuid4()), Request("work")
    self = SimpleNamespace(
        _lease_extender=SimpleNamespace(extend=nullcontext),
        _execute=lambda body: (SimpleNamespace(output=f"did {body.request}"), session),
        _reply_and_ack=lambda msg, result: settled.append(result),
    )
    (message,) = Box(request).receive()
    ns["_handle_message"](self, message)
    self._execute = lambda body: 1 / 0
    ns["_handle_message"](self, message)
    good, bad = settled
    assert (good.request_id, good.output) == (request.request_id, "did work")
    assert (good.session_id, good.error) == (session.session_id, None)
    assert (bad.request_id, bad.error) == (request.request_id, "division by zero")


def in_use(stage: Stage) -> Names:
    return {
        **loops.names(),
        "MyMainLoop": loops.my_loop(),
        "adapter": loops.adapter(lambda prompt: "done"),
        "requests": Box(),
    }


def unit_tests(stage: Stage) -> Names:
    return {
        **loops.names(),
        "create_expiring_message": lambda: Beating(ReceiptHandleExpiredError),
        "create_test_message": Beating,
        "time": time,
    }


def slow(stage: Stage) -> Names:
    ran: list[Any] = []

    def answer(prompt: Any) -> str:
        time.sleep(2.5)  # longer than the lease of two seconds that the document asks for
        ran.append(prompt)
        return "done"

    return {
        **loops.names(),
        "InMemoryMailbox": InMemoryMailbox,
        "SlowProcessingLoop": loops.my_loop(),
        "TestRequest": MyRequest,
        "mailbox": Box(),
        "ran": ran,
        "slow_adapter": loops.adapter(answer),
    }


def check_slow(ns: Names) -> None:
    assert len(ns["ran"]) == 1
    assert ns["mailbox"].approximate_count() == 0  # a lease that was lost could not be settled


TABLE: dict[int, Entry] = {
    0: Run(sketch, check_config),
    1: Run(extender, check_extender),
    2: Run(with_extender, check_loop_config),
    3: Run(with_extender, check_constructor),
    4: Run(sketch, check_handling),
    5: Run(lambda stage: loops.names(), needs=("loops",)),
    6: Run(in_use, needs=("loops",)),
    7: Run(needs=("loops",)),
    8: Run(unit_tests, needs=("loops",)),
    9: Run(slow, check_slow, needs=("loops",)),
}
