"""What a loop has in hand when its time to stop is over."""

import logging
import threading

import pytest

from tests.loops.helpers import bodies, in_background
from weakincentives import connect
from weakincentives.runtime import InMemoryMailbox, Worker, WorkerConfig


class Blocked:
    """A step of a store that hangs the first time, until it is let go."""

    def __init__(self, step):
        self.step = step
        self.calls = 0
        self.entered, self.go = threading.Event(), threading.Event()

    def __call__(self, *args, **options):
        self.calls += 1
        if self.calls == 1:
            self.entered.set()
            assert self.go.wait(120)
        return self.step(*args, **options)


def test_an_acknowledgement_that_hangs_does_not_keep_the_rest(box, monkeypatch):
    acknowledge = Blocked(box.store.acknowledge_now)
    monkeypatch.setattr(box.store, "acknowledge_now", acknowledge)
    entered, go = threading.Event(), threading.Event()

    def handler(body):
        if body == 1:
            entered.set()
            assert go.wait(120)

    box.send_batch([0, 1, 2])
    worker = Worker(box, handler, config=WorkerConfig(batch=3))
    with in_background(worker):
        assert entered.wait(120)
        assert worker.shutdown(timeout=0.05) is False
        given_back = [waiting.body for waiting in box.peek()]
        acknowledge.go.set()
        go.set()
    assert given_back == [1, 2]
    assert [waiting.body for waiting in box.peek()] == [1, 2]


def test_a_job_that_has_run_is_answered_rather_than_given_back(box, replies, monkeypatch):
    put = Blocked(replies.store.put_now)
    monkeypatch.setattr(replies.store, "put_now", put)
    box.send_batch([0, 1], reply_to=replies)
    worker = Worker(box, str, config=WorkerConfig(batch=2))
    with in_background(worker):
        assert put.entered.wait(120)
        assert worker.shutdown(timeout=0.05) is False
        assert [waiting.body for waiting in box.peek()] == [1]
        assert box.stats().total == 1
        put.go.set()
    assert bodies(replies) == ["0"]
    assert box.stats().total == 1


def test_one_whose_answer_cannot_be_sent_is_given_back(box, monkeypatch):
    replies = InMemoryMailbox("replies", max_size=1)
    put = Blocked(replies.store.put_now)
    monkeypatch.setattr(replies.store, "put_now", put)
    box.send_batch([0, 1], reply_to=replies)
    worker = Worker(box, str, config=WorkerConfig(batch=2))
    with in_background(worker):
        assert put.entered.wait(120)
        replies.close()
        assert worker.shutdown(timeout=0.05) is False
        assert sorted(waiting.body for waiting in box.peek()) == [0, 1]
        put.go.set()


@pytest.mark.parametrize("batch", [1, 3])
def test_a_mailbox_that_is_closed_after_the_deadline_is_nothing_to_warn_of(tmp_path, caplog, batch):
    backend = connect(f"sqlite:///{tmp_path}/q.db")
    box = backend.mailbox("jobs")
    box.send_batch([0, 1, 2])
    entered, go = threading.Event(), threading.Event()

    def handler(body):
        entered.set()
        assert go.wait(120)

    worker = Worker(box, handler, config=WorkerConfig(batch=batch))
    with caplog.at_level(logging.WARNING), in_background(worker):
        assert entered.wait(120)
        assert worker.shutdown(timeout=0.05) is False
        assert box.stats().pending == 3
        backend.close()
        go.set()
    assert "could not be given back" not in caplog.text
    assert "failed" not in caplog.text
