import logging
import threading
from dataclasses import dataclass

import pytest

from weakincentives.dispatch import Dispatcher, InProcessDispatcher


@dataclass(frozen=True)
class Happened:
    what: str


@dataclass(frozen=True)
class HappenedTwice(Happened):
    again: str


def test_a_subscriber_hears_its_type_and_subtypes() -> None:
    dispatcher: Dispatcher = InProcessDispatcher()
    heard: list[Happened] = []
    dispatcher.subscribe(Happened, heard.append)
    dispatcher.dispatch(Happened("a"))
    dispatcher.dispatch(HappenedTwice("b", "c"))
    dispatcher.dispatch("something else")
    assert heard == [Happened("a"), HappenedTwice("b", "c")]


def test_a_subscriber_to_a_subtype_does_not_hear_its_base() -> None:
    dispatcher = InProcessDispatcher()
    heard: list[Happened] = []
    dispatcher.subscribe(HappenedTwice, heard.append)
    dispatcher.dispatch(Happened("a"))
    assert heard == []


def test_object_hears_everything() -> None:
    dispatcher = InProcessDispatcher()
    heard: list[object] = []
    dispatcher.subscribe(object, heard.append)
    dispatcher.dispatch(Happened("a"))
    dispatcher.dispatch(7)
    assert heard == [Happened("a"), 7]


def test_subscribers_are_called_in_order_in_the_callers_thread() -> None:
    dispatcher = InProcessDispatcher()
    calls: list[tuple[str, int]] = []
    for name in ("first", "second"):
        dispatcher.subscribe(
            Happened, lambda _, name=name: calls.append((name, threading.get_ident()))
        )
    dispatcher.dispatch(Happened("a"))
    here = threading.get_ident()
    assert calls == [("first", here), ("second", here)]


def test_a_subscriber_that_fails_is_logged_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    dispatcher = InProcessDispatcher()
    heard: list[Happened] = []

    def fail(event: Happened) -> None:
        raise RuntimeError("broken exporter")

    dispatcher.subscribe(Happened, fail)
    dispatcher.subscribe(Happened, heard.append)
    with caplog.at_level(logging.ERROR, "weakincentives.dispatch"):
        dispatcher.dispatch(Happened("a"))
    assert heard == [Happened("a")]
    assert "Happened" in caplog.text
    assert "broken exporter" in caplog.text


def test_an_interrupt_is_not_swallowed() -> None:
    dispatcher = InProcessDispatcher()

    def interrupt(event: Happened) -> None:
        raise KeyboardInterrupt

    dispatcher.subscribe(Happened, interrupt)
    with pytest.raises(KeyboardInterrupt):
        dispatcher.dispatch(Happened("a"))


def test_each_subscription_is_undone_once() -> None:
    dispatcher = InProcessDispatcher()
    heard: list[Happened] = []
    dispatcher.subscribe(Happened, heard.append)
    dispatcher.subscribe(Happened, heard.append)
    assert dispatcher.unsubscribe(Happened, heard.append) is True
    dispatcher.dispatch(Happened("a"))
    assert heard == [Happened("a")]
    assert dispatcher.unsubscribe(Happened, heard.append) is True
    assert dispatcher.unsubscribe(Happened, heard.append) is False
    dispatcher.dispatch(Happened("b"))
    assert heard == [Happened("a")]


def test_a_handler_may_change_the_subscriptions() -> None:
    dispatcher = InProcessDispatcher()
    heard: list[str] = []

    def once(event: Happened) -> None:
        heard.append(event.what)
        dispatcher.unsubscribe(Happened, once)
        dispatcher.subscribe(Happened, lambda event: heard.append(f"later {event.what}"))

    dispatcher.subscribe(Happened, once)
    dispatcher.dispatch(Happened("a"))
    dispatcher.dispatch(Happened("b"))
    assert heard == ["a", "later b"]


def test_no_subscription_is_lost_between_threads() -> None:
    dispatcher = InProcessDispatcher()
    heard: list[Happened] = []
    start = threading.Barrier(8)

    def subscribe_many() -> None:
        start.wait()
        for _ in range(50):
            dispatcher.subscribe(Happened, heard.append)

    threads = [threading.Thread(target=subscribe_many) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    dispatcher.dispatch(Happened("a"))
    assert len(heard) == 400
