"""A signal handler that sends in the middle of a send: a step of its own, or none at all."""

from collections.abc import Callable
from typing import Any

import pytest

from chaos.points import Points
from weakincentives.runtime.mailbox import InMemoryMailbox, MailboxFullError, ReentrantStepError

Box = InMemoryMailbox[str, None]


def each_point(make: Callable[[], Box], send: Callable[[Box], object]) -> list[Box]:
    """Let a handler do the same send at each point of a send; return the mailboxes."""
    for _ in range(2):  # from Python 3.13 on, a function has no points when it is first traced
        box = make()
        with Points(raising=False) as points:
            send(box)
    boxes = []
    for at in range(1, points.count + 1):
        box = make()

        def handler(box: Box = box) -> None:
            try:
                send(box)
            except ReentrantStepError:
                pass

        with Points(raising=False, at=at, handler=handler):
            send(box)
        boxes.append(box)
    assert boxes
    return boxes


def with_a_known_id() -> Box:
    box = Box("box")
    box.send("before", message_id="before")
    return box


@pytest.mark.parametrize("batch", [False, True])
def test_the_same_id_is_one_message(batch: bool) -> None:
    def send(box: Any) -> None:
        if batch:
            box.send_batch(["a", "b"], message_ids=["a", "b"])
        else:
            box.send("a", message_id="a")

    counts = {box.approximate_count() for box in each_point(with_a_known_id, send)}
    assert counts == {3 if batch else 2}


def test_a_full_mailbox_takes_no_more() -> None:
    def send(box: Box) -> None:
        try:
            box.send("x")
        except MailboxFullError:
            pass

    boxes = each_point(lambda: Box("box", max_size=1), send)
    assert {box.approximate_count() for box in boxes} == {1}
