import multiprocessing
import os
import signal
import threading

import pytest

from testkit.waiting import eventually
from weakincentives.runtime import ShutdownCoordinator
from weakincentives.runtime.group.signals import SignalsUnavailableError


@pytest.fixture(autouse=True)
def handlers_are_put_back():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    yield
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert ShutdownCoordinator._installed is None


@pytest.fixture
def coordinator():
    coordinator = ShutdownCoordinator.install()
    yield coordinator
    coordinator.uninstall()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_calls_what_was_registered_once(coordinator, number):
    calls, told = [], threading.Event()

    def cleanup():
        calls.append(threading.current_thread() is threading.main_thread())
        told.set()

    coordinator.register(cleanup)
    assert not coordinator.requested
    signal.raise_signal(number)
    assert told.wait(120)
    assert coordinator.wait(120)
    assert coordinator.requested
    assert calls == [False]


def test_a_callback_registered_after_the_signal_is_called_at_once(coordinator):
    signal.raise_signal(signal.SIGTERM)
    assert coordinator.wait(120)
    late = threading.Event()
    coordinator.register(late.set)
    assert late.wait(120)


def test_a_slow_and_a_failing_callback_delay_nobody(coordinator, caplog):
    go, told = threading.Event(), threading.Event()

    def fail():
        raise LookupError("no such thing")

    coordinator.register(lambda: go.wait(30))
    coordinator.register(fail)
    coordinator.register(told.set)
    signal.raise_signal(signal.SIGTERM)
    try:
        assert told.wait(120)
        eventually(lambda: "a shutdown callback failed" in caplog.text)
    finally:
        go.set()


def test_a_callback_is_called_even_when_no_thread_is_left(coordinator, monkeypatch):
    told = threading.Event()

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    coordinator.register(told.set)
    signal.raise_signal(signal.SIGTERM)
    assert told.wait(120)


def test_unregister(coordinator):
    calls, told = [], threading.Event()
    one = lambda: calls.append(1)  # noqa: E731
    coordinator.register(one)
    assert coordinator.unregister(one)
    assert not coordinator.unregister(one)
    coordinator.register(told.set)
    signal.raise_signal(signal.SIGTERM)
    assert told.wait(120)
    assert calls == []


def test_a_callback_may_register_and_unregister(coordinator):
    told = threading.Event()

    def first():
        coordinator.unregister(first)
        coordinator.register(told.set)

    coordinator.register(first)
    signal.raise_signal(signal.SIGTERM)
    assert told.wait(120)


def test_there_is_one_coordinator_until_the_last_uninstall():
    one = ShutdownCoordinator.install()
    two = ShutdownCoordinator.install()
    assert one is two
    one.uninstall()
    assert signal.getsignal(signal.SIGTERM) == one._on_signal
    one.uninstall()
    one.uninstall()
    three = ShutdownCoordinator.install()
    assert three is not one
    three.uninstall()


def test_handlers_that_were_there_come_back():
    mine = lambda number, frame: None  # noqa: E731
    before = signal.signal(signal.SIGTERM, mine)
    try:
        ShutdownCoordinator.install().uninstall()
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        coordinator = ShutdownCoordinator.install()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.raise_signal(signal.SIGINT)
        assert not coordinator.wait(0.05)
        coordinator.uninstall()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_cannot_install_but_may_register(coordinator):
    seen = []

    def elsewhere():
        try:
            ShutdownCoordinator((signal.SIGTERM,))._set_handlers()
        except SignalsUnavailableError as error:
            seen.append(str(error))
        seen.append(ShutdownCoordinator.install() is coordinator)
        coordinator.uninstall()
        try:
            coordinator.uninstall()
        except SignalsUnavailableError as error:
            seen.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    first, same, last = seen
    assert "main thread" in first
    assert same
    assert "main thread" in last


def test_its_thread_ends_with_it():
    coordinator = ShutdownCoordinator.install()
    coordinator.uninstall()
    name = "shutdown-coordinator"
    eventually(lambda: not any(thread.name == name for thread in threading.enumerate()))


def _sleep(ready):
    ready.set()
    threading.Event().wait(60)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # 3.12+: fork with threads
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_dies_of_its_signal_as_it_would_have(coordinator):
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    child = context.Process(target=_sleep, args=(ready,))
    child.start()
    try:
        assert ready.wait(120)
        child.terminate()
        child.join(120)
        assert child.exitcode == -signal.SIGTERM
    finally:
        child.kill()
        child.join()
    assert not coordinator.requested
