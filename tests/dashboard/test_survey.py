"""The survey: every queue has its turn, and none costs more than its share."""

from typing import Any

import pytest

from weakincentives.dashboard.history import History
from weakincentives.dashboard.survey import Survey
from weakincentives.runtime.dead_letters.letter import letter_for
from weakincentives.runtime.mailbox import MailboxConnectionError, MailboxStats
from weakincentives.runtime.mailbox.seam.backend import Backend


class Clock:
    """Time that passes only when a queue is counted."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def survey(backend: Backend) -> Survey:
    return Survey(backend, History(None), 2.0)


def test_it_finds_queues_and_counts_them(backend: Backend, survey: Survey) -> None:
    backend.mailbox("orders").send_batch(["a", "b"])
    survey.round()
    (reading,) = survey.readings()
    assert reading.stats is not None
    assert (reading.name, reading.stats.pending, reading.has_letters) == ("orders", 2, False)
    assert survey.state.error is None
    assert survey.reading("others") is None


def test_a_round_ends_after_its_share_and_the_next_one_goes_on(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    boxes = [backend.mailbox(f"queue-{number:03}") for number in range(100)]
    for box in boxes:
        box.send("job")
    clock, counted = Clock(), []
    stats = type(boxes[0]).stats

    def counting(mailbox: Any) -> Any:
        counted.append(mailbox.name)
        clock.now += 0.02
        return stats(mailbox)

    monkeypatch.setattr(type(boxes[0]), "stats", counting)
    survey = Survey(backend, History(None), 2.0, clock=clock)
    rounds = 0
    while len(set(counted)) < 100:
        before = len(counted)
        survey.round()
        clock.now += 2.0
        rounds += 1
        assert len(counted) - before <= 26
    assert rounds == 4, "nobody waits for a second turn before all had their first"


def test_quiet_queues_are_counted_less_often_unless_somebody_looks(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = backend.mailbox("quiet")
    box.send("job")
    box.receive()[0].acknowledge()
    counted: list[str] = []
    stats = type(box).stats
    monkeypatch.setattr(
        type(box), "stats", lambda self: (counted.append(self.name), stats(self))[1]
    )
    clock = Clock()
    survey = Survey(backend, History(None), 2.0, clock=clock)

    def rounds(watched: str) -> int:
        counted.clear()
        for _ in range(10):
            survey.reading(watched)
            survey.round()
            clock.now += 2.0
        return len(counted)

    assert rounds("another") <= 3
    assert rounds("quiet") == 10


def test_a_backend_that_fails_is_reported_and_seen_again(
    backend: Backend, survey: Survey, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.mailbox("orders").send("a")
    survey.round()
    seen_at = survey.state.at
    with monkeypatch.context() as patch:
        patch.setattr(type(backend.mailbox("orders")), "stats", lambda self: raising("<b>gone</b>"))
        survey.reading("orders")
        survey.round()
    assert survey.state.error == "MailboxConnectionError: <b>gone</b>"
    assert survey.state.at == seen_at
    assert survey.readings()[0].verdict.badges == ("cannot be read",)
    survey.reading("orders")
    survey.round()
    assert survey.state.error is None
    assert survey.readings()[0].verdict.badges == ()


def raising(text: str) -> Any:
    raise MailboxConnectionError(text)


def test_it_knows_dead_letters(backend: Backend, survey: Survey) -> None:
    orders, letters = backend.mailbox("orders"), backend.mailbox("orders-dlq")
    orders.send({"item": "tea"})
    (message,) = orders.receive()
    letters.send(letter_for(message, ValueError("no"), source="orders", dlq=letters, readable=True))
    survey.round()
    assert [one.name for one in survey.readings() if one.has_letters] == ["orders-dlq"]


def test_ten_thousand_queues_cost_no_more_than_the_share() -> None:
    class Listed:
        """A backend with so many queues, of which each count takes a millisecond."""

        def queues(self) -> list[str]:
            return [f"queue-{number}" for number in range(10_000)]

        def workers(self) -> list[Any]:
            return []

        def mailbox(self, name: str) -> Any:
            return self

        def stats(self) -> MailboxStats:
            clock.now += 0.001
            return MailboxStats(0, 0, 0, None)

    clock = Clock()
    listed: Any = Listed()
    survey = Survey(listed, History(None), 2.0, clock=clock)
    for _ in range(20):  # half a second of each two
        before = clock.now
        survey.round()
        assert clock.now - before < 0.502
        clock.now += 1.5
    assert survey.state.queues == 10_000
    assert all(one.stats is not None for one in survey.readings())
