"""What telemetry costs where it is off, counted and not timed."""

import sys

from benchmarks.telemetry import share_of_asking
from weakincentives.runtime.mailbox import InMemoryMailbox


def test_asking_whether_anybody_listens_costs_next_to_nothing() -> None:
    assert 0 < share_of_asking() < 0.02


def test_without_a_dispatcher_no_code_of_telemetry_is_called() -> None:
    box = InMemoryMailbox[int, None]("orders")
    called: list[str] = []

    def profile(frame, event, argument):  # type: ignore[no-untyped-def]
        if event == "call":
            called.append(frame.f_code.co_qualname)

    box.send(0)
    box.receive()[0].acknowledge()
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        box.send(1)
        box.receive()[0].acknowledge()
    finally:
        sys.setprofile(before)
    assert "StoreMailbox.send" in called
    assert not {"publish", "StoreMailbox._publish", "_announced", "not_sent"} & set(called)
