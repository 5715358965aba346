"""Loops on a SQLite file whose answers go to a Redis server, which hangs."""

import itertools
import os
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from chaos.crews import emptied
from chaos.processes import Child
from chaos.stage import Stage, redis_binary
from testkit.servers import Standalone
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.runtime import LoopGroup, Worker
from weakincentives.runtime.mailbox import RegistryResolver

__all__ = ["Elsewhere", "answer_elsewhere"]

LEASE = 2.0
PATIENCE = 60.0
ANSWERS = "answers"


def boxes_on(path: str, far: Any) -> dict[str, Any]:
    """Open a queue of the file for each way in which an answer goes to Redis.

    As the loop says, as the message says, and to a caller who waits.
    """
    near: dict[str, Any] = {"durability": "normal"}
    resolver: RegistryResolver[Any] = RegistryResolver({ANSWERS: far.mailbox(ANSWERS)})
    return {
        "responses": SQLiteMailbox("responses", path, **near),
        "reply_to": SQLiteMailbox("reply_to", path, reply_resolver=resolver, **near),
        "reply": SQLiteMailbox("reply", path, reply_store=far.reply_store(), **near),
        "quick": SQLiteMailbox("quick", path, **near),
    }


def answer_elsewhere(directory: str, path: str, url: str) -> None:
    """Serve those queues, and one that answers in the file, in one process."""
    log = os.open(Path(directory, "elsewhere.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def handle(body: Any) -> Any:
        os.write(log, f"{body['id']}\n".encode())
        time.sleep(body.get("work", 0))
        return body["id"]

    with ExitStack() as stack:
        far = stack.enter_context(connect(url))
        boxes = [stack.enter_context(box) for box in boxes_on(path, far).values()]
        answers = far.mailbox(ANSWERS)
        LoopGroup([Worker(box, handle, responses=answers) for box in boxes]).run(
            visibility_timeout=LEASE, wait_time_seconds=1
        )


class Elsewhere:
    """A process whose answers go to Redis, and its callers."""

    def __init__(self, stage: Stage) -> None:
        self._directory = stage.directory
        path = str(stage.directory / "box.db")
        self.server = stage.resources.enter_context(Standalone(redis_binary()))
        far = stage.resources.enter_context(connect(self.server.url))
        self._answers = far.mailbox(ANSWERS)
        self._boxes = boxes_on(path, far)
        for box in self._boxes.values():
            stage.resources.enter_context(box)
        self._ids = itertools.count()
        child = Child(
            answer_elsewhere,
            "elsewhere",
            *(str(stage.directory), path, self.server.url),
            plant=stage.plant,
        )
        stage.resources.callback(child.kill)

    def begin(self, work: float) -> dict[str, Any]:
        """Send a job of each kind, and return their ids, with what waits, once they have begun."""
        ids = [f"job-{next(self._ids)}" for _ in range(3)]
        jobs: list[Any] = [{"id": id, "work": work} for id in ids]
        self._boxes["responses"].send(jobs[0])
        self._boxes["reply_to"].send(jobs[1], reply_to=self._answers)
        reply = self._boxes["reply"].send_expecting_reply(jobs[2])
        eventually(lambda: set(ids) <= set(self._begun()), PATIENCE, "jobs that have begun")
        return {ids[0]: None, ids[1]: None, ids[2]: reply}

    def use_the_file(self) -> tuple[float, float]:
        """Return how long a send to the file took here, and an answer of the same process."""
        began = time.monotonic()
        reply = self._boxes["quick"].send_expecting_reply({"id": "quick"})
        sent = time.monotonic()
        reply.wait(timeout=PATIENCE)
        return sent - began, time.monotonic() - sent

    def wrong(self, asked: dict[str, Any]) -> list[str]:
        """Say which jobs have not exactly one answer, after all are done."""
        queues = [box for name, box in self._boxes.items() if name != "quick"]
        eventually(lambda: not any(box.stats().total for box in queues), PATIENCE, "empty queues")
        answers = Counter(emptied(self._answers))
        answers.update(reply.wait(timeout=PATIENCE) for reply in asked.values() if reply)
        return [f"replies: {answers[id]} to {id}" for id in asked if answers[id] != 1]

    def _begun(self) -> list[str]:
        path = self._directory / "elsewhere.log"
        return path.read_text().splitlines() if path.exists() else []
