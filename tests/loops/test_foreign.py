"""Workers on mailboxes that are not ours, in front of which a worker behaves the same."""

import ast
from pathlib import Path

import pytest

from tests.loops.helpers import NO_WAIT, once
from weakincentives import connect
from weakincentives.runtime import DLQPolicy, InMemoryMailbox, Worker, WorkerConfig, current_lease
from weakincentives.runtime.worker import worker as worker_module


class Wrapped:
    """Somebody's own mailbox that hands out messages of ours: it counts, logs, or whatever."""

    def __init__(self, mailbox):
        self.mailbox = mailbox
        self.received = 0

    def receive(self, **options):
        messages = self.mailbox.receive(**options)
        self.received += len(messages)
        return messages


@pytest.fixture(params=["memory", "sqlite"])
def backend(request, tmp_path):
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/q.db"
    with connect(url) as backend:
        yield backend


def serve(worker):
    worker.run(max_iterations=2, wait_time_seconds=0)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_caller_is_answered(backend, batch):
    box = backend.mailbox("jobs")
    replies = [box.send_expecting_reply(n) for n in range(batch)]
    worker = Worker(Wrapped(box), lambda n: n * 2, config=WorkerConfig(batch=batch))
    serve(worker)
    assert [reply.wait(timeout=0) for reply in replies] == [n * 2 for n in range(batch)]
    assert box.stats().total == 0
    assert worker.lease_extender.counters.held == 0


@pytest.mark.parametrize("batch", [1, 3])
def test_an_answer_goes_where_the_sender_wants_it(backend, batch):
    box, replies = backend.mailbox("jobs"), backend.mailbox("replies")
    for n in range(batch):
        box.send(n, reply_to=replies)
    serve(Worker(Wrapped(box), lambda n: n * 2, config=WorkerConfig(batch=batch)))
    assert sorted(waiting.body for waiting in replies.peek()) == [n * 2 for n in range(batch)]
    assert box.stats().total == 0


def test_what_nobody_waits_for_is_skipped(backend):
    box, ran = backend.mailbox("jobs"), []
    box.send_expecting_reply(1).cancel()
    serve(Worker(Wrapped(box), ran.append))
    assert ran == []
    assert box.stats().total == 0


def test_a_failure_is_dead_lettered_and_its_caller_let_go(backend):
    box, letters = backend.mailbox("jobs"), InMemoryMailbox("letters")
    box.send_expecting_reply("a")

    def handler(body):
        raise ValueError(body)

    policy = DLQPolicy(letters, max_delivery_count=1)
    serve(Worker(Wrapped(box), handler, dlq=policy, config=NO_WAIT))
    assert [letter.body.body for letter in letters.peek()] == ["a"]
    assert box.stats().total == 0


def test_a_policy_and_a_handler_see_the_message_that_was_received(backend):
    box, letters, seen = backend.mailbox("jobs"), InMemoryMailbox("letters"), []

    class Policy(DLQPolicy):
        def should_dead_letter(self, message, error):
            seen.append(message)
            return False

    def handler(body):
        seen.append(current_lease().message)
        raise ValueError(body)

    box.send("a")
    Worker(Wrapped(box), handler, dlq=Policy(letters), config=NO_WAIT).run(**once)
    first, second = seen
    assert first is second
    assert first.mailbox is box


# All but the first ask about a user's arguments, about code, and about types.
ASKING = {
    *("foreign.py", "validation.py", "interrupts.py", "type_arguments.py", "annotations.py"),
}


def test_nothing_but_the_adapter_asks_whose_mailbox_it_is():
    """`foreign` is the one place that knows of mailboxes that are not ours."""
    asking = {}
    for path in Path(worker_module.__file__).parent.glob("*.py"):
        if path.name in ASKING:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                text = ast.unparse(node)
                if node.func.id in ("getattr", "hasattr"):
                    asking.setdefault(path.name, []).append(text)
                if node.func.id == "isinstance" and ("Mailbox" in text or "Message" in text):
                    asking.setdefault(path.name, []).append(text)
    assert asking == {
        "thread.py": ["hasattr(result, '__await__')"],
        "handler_tasks.py": ["hasattr(value, '__await__')"],
        "quarantine.py": ["hasattr(os, 'register_at_fork')"],
        "blocked_loop.py": ["hasattr(os, 'register_at_fork')"],
        "announcer.py": ["hasattr(os, 'register_at_fork')"],
    }
