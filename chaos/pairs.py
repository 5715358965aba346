"""Two places for messages, and processes that serve both: one place breaks, the other must not."""

import itertools
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from chaos.processes import Child
from chaos.small_disk import disk
from chaos.stage import Stage, redis_binary
from testkit.locks import locked
from testkit.ports import HOST
from testkit.proxy import Proxy
from testkit.servers import Standalone
from testkit.small_disk import filled
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.runtime import LoopGroup, Worker
from weakincentives.runtime.mailbox.errors import MailboxFullError

__all__ = ["LEASE", "Crew", "Side", "serve_both"]

LEASE = 2.0
SHUTDOWN = 4.0
SLACK = 4.0
"""Seconds that a busy machine may add to what is promised."""
WATCHDOG = 38.0
"""Longer than one attempt to reach a place that hangs, shorter than the longest outage here."""
QUEUES = ("long", "quick")
BALLAST = "ballast"


def serve_both(directory: str, name: str, broken: str, healthy: str) -> None:
    """Serve two queues of either place in one process, with probes, until a signal comes."""
    log = os.open(Path(directory, f"{name}.jobs"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    workers: list[Worker[Any, Any]] = []

    def handle(body: Any) -> Any:
        os.write(log, json.dumps([body["id"], "began"]).encode() + b"\n")
        ends = time.monotonic() + body.get("work", 0)
        while time.monotonic() < ends:
            time.sleep(0.1)
            for worker in workers:
                if worker.heartbeat.at_work():
                    worker.heartbeat.beat()
        os.write(log, json.dumps([body["id"], "ended"]).encode() + b"\n")
        return body["id"]

    with ExitStack() as stack:
        for url in (broken, healthy):
            backend = stack.enter_context(connect(url))
            workers += [Worker(backend.mailbox(queue), handle) for queue in QUEUES]
        group = LoopGroup(
            workers,
            health_port=0,
            shutdown_timeout=SHUTDOWN,
            watchdog_threshold=WATCHDOG,
            ready_within=5,
        )
        told = threading.Thread(target=_tell, args=(group, Path(directory, f"{name}.port")))
        told.start()
        stack.callback(told.join)
        group.run(visibility_timeout=LEASE, wait_time_seconds=1)


def _tell(group: LoopGroup, path: Path) -> None:
    while group.health_address is None:
        time.sleep(0.01)
    path.with_suffix(".tmp").write_text(str(group.health_address[1]))
    path.with_suffix(".tmp").rename(path)


class Side:
    """One of the two places, and the ways in which it can break."""

    def __init__(self, stage: Stage, kind: str, directory: Path) -> None:
        self.kind = kind
        if kind == "sqlite":
            self.path = directory / "box.db"
            self.url = self.reached = f"sqlite:///{self.path}?durability=normal"
        else:
            self.server = stage.resources.enter_context(Standalone(redis_binary()))
            self.proxy = stage.resources.enter_context(Proxy(self.server.port))
            self.url = self.server.url
            self.reached = f"redis://{HOST}:{self.proxy.port}/0"
            """How those go there who are to notice what happens on the way."""

    @contextmanager
    def hanging(self, trial: int) -> Iterator[None]:
        """Answer nobody: locked by another process, stopped, or silent on the way."""
        if self.kind == "sqlite":
            with locked(self.path):
                yield
        elif trial % 2:
            with self.proxy.black_hole():
                yield
        else:
            self.server.pause()
            try:
                yield
            finally:
                self.server.resume()

    @contextmanager
    def slow(self, _trial: int) -> Iterator[None]:
        """Answer late: locked again and again, or far away."""
        if self.kind == "sqlite":
            with locked(self.path, seconds=0.3):
                yield
        else:
            self.proxy.delay = 0.3
            try:
                yield
            finally:
                self.proxy.delay = 0.0

    @contextmanager
    def full(self, _trial: int) -> Iterator[None]:
        """Take nothing more: no room on the disk, or no memory."""
        if self.kind == "sqlite":
            with filled(disk()):
                yield
            return
        self.server.command("CONFIG", "SET", "maxmemory", "1")
        try:
            yield
        finally:
            self.server.command("CONFIG", "SET", "maxmemory", "0")


class Crew:
    """Two processes that serve both places, and what they are seen to do."""

    def __init__(self, stage: Stage, *, on_disk: bool = False) -> None:
        self._stage = stage
        kinds = stage.backend.split("/")
        self.broken = Side(stage, kinds[0], disk() if on_disk else _room(stage, "broken"))
        self.healthy = Side(stage, kinds[1], _room(stage, "healthy"))
        self._boxes = {
            (side, queue): backend.mailbox(queue)
            for side in (self.broken, self.healthy)
            for backend in [stage.resources.enter_context(connect(side.url))]
            for queue in (*QUEUES, BALLAST)
        }
        self._ids = itertools.count()
        self._children = itertools.count()

    def start(self) -> Child:
        """Start a process and wait until it is ready."""
        name = f"crew-{next(self._children)}"
        child = Child(
            serve_both,
            name,
            *(str(self._stage.directory), name, self.broken.reached, self.healthy.reached),
            plant=self._stage.plant,
        )
        self._stage.resources.callback(child.kill)
        eventually(lambda: self._path(child, "port").exists(), 120, "probes")
        eventually(lambda: self.probe(child, "ready")[0] == 200, 120, "a process that is ready")
        return child

    def begin(self, side: Side, work: float) -> list[str]:
        """Send a long job to each process; return their ids once both have begun."""
        ids = [f"job-{next(self._ids)}" for _ in range(2)]
        for id in ids:
            self._boxes[side, "long"].send({"id": id, "work": work})
        eventually(lambda: all(self.runs(id, "began") for id in ids), 120, "long jobs")
        return ids

    def finish(self, ids: list[str]) -> None:
        """Wait until these jobs have ended."""
        eventually(lambda: all(self.runs(id, "ended") for id in ids), 120, "the end of long jobs")

    def ask(self, side: Side, within: float) -> float:
        """Ask for a quick answer and return how long it took."""
        began = time.monotonic()
        box = self._boxes[side, "quick"]
        box.send_expecting_reply({"id": f"job-{next(self._ids)}"}).wait(timeout=within)
        return time.monotonic() - began

    def overfill(self, side: Side) -> None:
        """Send what nobody serves until the place refuses it, which it must."""
        box = self._boxes[side, BALLAST]
        try:
            for _ in range(1000):
                box.send("x" * 100_000)
        except MailboxFullError:
            return
        self._stage.violations.append("a full place has taken 100 MB")

    def lost(self, side: Side) -> list[str]:
        """Take the long jobs whose leases nobody keeps, and return their ids."""
        messages = self._boxes[side, "long"].receive(max_messages=10, visibility_timeout=600)
        return [message.body["id"] for message in messages]

    def rest(self, side: Side) -> None:
        """Wait until everything there is done."""
        box = self._boxes[side, "long"]
        eventually(lambda: box.approximate_count() == 0, 120, "an empty queue")

    def probe(self, child: Child, which: str) -> tuple[int, dict[str, Any]]:
        """Ask a process for its health."""
        port = int(self._path(child, "port").read_text())
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/health/{which}", timeout=10) as http:
                return http.status, json.load(http)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def ready(self, child: Child, side: Side) -> bool:
        """Say whether a process calls its loops on this side ready."""
        loops = [loop["ready"] for loop in self.probe(child, "ready")[1]["loops"]]
        return all(loops[:2] if side is self.broken else loops[2:])

    def runs(self, id: str, what: str = "began") -> int:
        """Count how often a job began or ended, in all processes."""
        line = json.dumps([id, what])
        return sum(
            path.read_text().splitlines().count(line)
            for path in self._stage.directory.glob("*.jobs")
        )

    def terminate(self, child: Child) -> float:
        """End a process as an orchestrator does and return how long it took."""
        began = time.monotonic()
        child.terminate()
        if not child.join(SHUTDOWN + SLACK):
            self._stage.violations.append(f"not ended {SHUTDOWN + SLACK:g} s after SIGTERM")
            child.kill()
        return time.monotonic() - began

    def _path(self, child: Child, kind: str) -> Path:
        return self._stage.directory / f"{child.name}.{kind}"


def _room(stage: Stage, name: str) -> Path:
    room = stage.directory / name
    room.mkdir()
    return room
