"""A broker that goes away and comes back: a loop says so while its backend still tries again."""

import threading

import pytest

from testkit.waiting import eventually
from tests.services import missing
from weakincentives import connect
from weakincentives.contrib.mailbox.redis import retries
from weakincentives.runtime import InMemoryMailbox, InProcessDispatcher, Worker, WorkerConfig
from weakincentives.runtime.events import MailboxUnreachable
from weakincentives.runtime.mailbox import MailboxConnectionError

servers = pytest.importorskip("testkit.servers")


@pytest.fixture
def binary():
    available = servers.servers_available()
    if not available:
        missing("neither redis-server nor valkey-server was found")
    return next(iter(available.values()))


@pytest.fixture
def patient(monkeypatch):
    """Let the backend try for longer than the test lasts."""
    monkeypatch.setattr(retries, "RETRY_SECONDS", 3600.0)


@pytest.fixture
def told():
    """Return the events of mailboxes that cannot be reached, and who publishes them."""
    events, found = InProcessDispatcher(), []
    events.subscribe(MailboxUnreachable, found.append)
    return found, WorkerConfig(dispatcher=events)


def in_thread(worker):
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    return thread


def is_reached_again(caplog, name="jobs"):
    return any(f"{name} can be reached again" in line for line in caplog.messages)


def test_an_outage_is_told_while_the_backend_tries_and_so_is_its_end(binary, patient, told, caplog):
    caplog.set_level("INFO", "weakincentives")
    found, config = told
    with servers.Standalone(binary, appendonly="always") as server, connect(server.url) as backend:
        worker = Worker(backend.mailbox("jobs"), str, config=config)
        thread = in_thread(worker)
        eventually(lambda: worker.heartbeat.reaches)
        server.kill()
        eventually(lambda: found)
        assert found[0].error_type.endswith("MailboxConnectionError")
        assert found[0].pause == 0
        eventually(lambda: any("jobs cannot be reached" in line for line in caplog.messages))
        assert "failed with MailboxConnectionError" in worker.heartbeat.trouble(60)
        assert not is_reached_again(caplog)
        server.restart()
        # The long poll of 20 s goes on: nobody waits for its end to hear of this.
        eventually(lambda: worker.heartbeat.reaches, within=15)
        eventually(lambda: is_reached_again(caplog))
        assert worker.heartbeat.trouble(60) is None
        assert len(found) == 1
        assert worker.shutdown()
        thread.join(120)


def test_what_a_job_cannot_reach_is_not_the_mailbox_of_its_loop(binary, patient, told):
    found, config = told
    with (
        servers.Standalone(binary) as here,
        servers.Standalone(binary) as there,
        connect(here.url) as backend,
        connect(there.url) as other,
    ):
        elsewhere, failures, done = other.mailbox("elsewhere"), [], threading.Event()
        elsewhere.send("first")
        there.kill()
        call = retries.RetryState.note

        def job(body):
            elsewhere.send(body)
            done.set()

        with pytest.MonkeyPatch.context() as patch:

            def note(self, fault, judged):
                pause = call(self, fault, judged)
                failures.append(pause)
                return pause

            patch.setattr(retries.RetryState, "note", note)
            worker = Worker(backend.mailbox("jobs"), job, config=config)
            thread = in_thread(worker)
            backend.mailbox("jobs").send("body")
            eventually(lambda: sum(failures) > 2)
        assert worker.heartbeat.reaches
        assert found == []
        there.restart()
        assert done.wait(120)
        assert worker.shutdown()
        thread.join(120)


class FailsOnce:
    """Lets the first receive fail, and tells when the thread that made it receives again."""

    def __init__(self, store):
        self.lease = store.lease
        self.victim = None
        self.again = threading.Event()
        store.lease = self

    def __call__(self, *asked, **options):
        if self.victim is None:
            self.victim = threading.get_ident()
            raise MailboxConnectionError("gone for a moment")
        if self.victim == threading.get_ident():
            self.again.set()
        return self.lease(*asked, **options)


def test_the_end_of_an_outage_is_told_though_another_thread_reached_the_mailbox_first(caplog):
    caplog.set_level("INFO", "weakincentives")
    box = InMemoryMailbox("jobs")
    box.send("for the other thread")
    fails = FailsOnce(box.store)
    config = WorkerConfig(concurrency=2)
    worker = Worker(box, lambda body: fails.again.wait(60), config=config)
    thread = in_thread(worker)
    eventually(lambda: any("jobs cannot be reached" in line for line in caplog.messages))
    eventually(lambda: is_reached_again(caplog))
    assert worker.shutdown(timeout=60)
    thread.join(120)
