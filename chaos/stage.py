"""What all scenarios share: the backend, its faults, histories, children, and the verdict."""

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from chaos import checkers, snapshots
from chaos.awaited import AwaitedBackend
from chaos.checkers import Snapshot
from chaos.cloud import emulated
from chaos.history import Log, Op, now, read
from chaos.processes import Child, Program
from chaos.recording import Hook, recorded
from testkit.servers import Cluster, SentinelTrio, Standalone, servers_available
from testkit.servers.aws import Unavailable
from weakincentives import connect
from weakincentives.runtime.mailbox.errors import ReceiptHandleExpiredError

__all__ = ["SCENARIOS", "NotRun", "Result", "Scale", "Scenario", "Stage", "scenario"]

Scale = Literal["short", "full"]
QUEUE = "jobs"
DRAIN_SECONDS = 60.0
"""So long after everything is well again, all work must be done."""


class NotRun(Exception):
    """Something that a scenario needs is not here; the message says what."""


@dataclass
class Result:
    """What came of a scenario."""

    trials: int
    violations: list[str] = field(default_factory=list)
    figures: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    not_run: str = ""
    """Why it did not run at all."""


@dataclass(frozen=True)
class Scenario:
    """A fault, on a backend. Called with a seed and a scale it returns a `Result`."""

    name: str
    subject: str
    backend: str
    what: str
    trials: dict[str, int]
    act: "Callable[[Stage], Result | None]"

    @property
    def key(self) -> str:
        return f"{self.subject}.{self.name}.{self.backend}"

    def __call__(self, seed: int, scale: Scale, plant: str = "") -> Result:
        """Run; with a bug of `chaos.planted` in every child process, to see it caught."""
        with ExitStack() as resources:
            stage = Stage(self, seed, scale, resources)
            stage.plant = plant
            try:
                result = self.act(stage)
            except NotRun as reason:
                return Result(0, not_run=str(reason))
            return result if result is not None else stage.verdict()


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    *backends: str, full: int, short: int
) -> "Callable[[Callable[[Stage], Result | None]], Callable[[Stage], Result | None]]":
    """Register a function as a scenario on each of these backends, with its number of trials."""

    def register(act: Any) -> Any:
        subject = act.__module__.rpartition(".")[2]
        for backend in backends:
            one = Scenario(
                act.__name__,
                subject,
                backend,
                (act.__doc__ or "").strip(),
                {"full": full, "short": short},
                act,
            )
            SCENARIOS[one.key] = one
        return act

    return register


class Stage:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario, seed: int, scale: Scale, resources: ExitStack) -> None:
        self.key = scenario.key
        self.backend, _, client = scenario.backend.partition("+")
        self.awaited = client == "asyncio"
        """Whether clients are those of redis.asyncio."""
        self.trials = scenario.trials[scale]
        self.full = scale == "full"
        self.seed = seed
        self.rng = random.Random(f"{seed} {scenario.key}")
        self.resources = resources
        self.directory = Path(tempfile.mkdtemp(prefix="wink-chaos-"))
        resources.callback(shutil.rmtree, self.directory, ignore_errors=True)
        self.histories = self.directory / "histories"
        self.histories.mkdir()
        self.log = Log(self.histories, "runner")
        resources.callback(self.log.close)
        self.violations: list[str] = []
        self.figures: dict[str, float] = {}
        self.notes: list[str] = []
        self._number = 0
        self.server_options: dict[str, Any] = {}
        self.plant = ""
        self._healed: float | None = None

    @property
    def path(self) -> Path:
        """The SQLite file."""
        return self.directory / "box.db"

    @cached_property
    def server(self) -> Any:
        """The server, trio, cluster or emulator; started when it is first asked for."""
        if self.backend == "sqs":
            try:
                return self.resources.enter_context(emulated(self.directory))
            except Unavailable as error:
                raise NotRun(str(error)) from error
        kind = {"redis": Standalone, "sentinel": SentinelTrio, "cluster": Cluster}[self.backend]
        options = dict(self.server_options)
        if kind is Standalone:
            options.setdefault("appendonly", "everysec")
        return self.resources.enter_context(kind(redis_binary(), **options))

    @cached_property
    def url(self) -> str:
        """Where the queues are."""
        if self.backend == "sqlite":
            return f"sqlite:///{self.path}?durability=normal"
        if self.backend == "redis":
            return str(self.server.url)
        if self.backend == "sentinel":
            places = ",".join(f"{host}:{port}" for host, port in self.server.sentinels)
            return f"redis+sentinel://{places}/{self.server.service_name}"
        if self.backend == "cluster":
            host, port = self.server.startup_nodes[0]
            return f"redis+cluster://{host}:{port}"
        if self.backend == "sqs":
            return str(self.server.url(self.server.port))
        return "memory://"

    def reach(self, url: str) -> None:
        """Let clients go there instead."""
        self.__dict__["url"] = url

    def use(self, server: Any) -> None:
        """Take this server instead of the usual one."""
        self.__dict__["server"] = self.resources.enter_context(server)

    def open(self, url: str) -> Any:
        """Open a Backend with the kind of client that this run is about."""
        return AwaitedBackend(url) if self.awaited else connect(url)

    @cached_property
    def connection(self) -> Any:
        """A Backend for this process."""
        return self.resources.enter_context(self.open(self.url))

    def mailbox(
        self, queue: str = QUEUE, *, client: str = "", hook: Hook | None = None, **options: Any
    ) -> Any:
        """Open a mailbox whose steps are recorded under a client's name."""
        log = self.log
        if client:
            log = Log(self.histories, client)
            self.resources.callback(log.close)
        return self.recorded(self.connection, queue, log, hook, **options)

    def recorded(
        self, backend: Any, queue: str, log: Log, hook: Hook | None = None, **options: Any
    ) -> Any:
        """Open a mailbox on a backend, whose steps are recorded, and which blocks when called."""
        box = recorded(backend.mailbox(queue, **options), log, hook)
        return backend.faced(box) if self.awaited else box

    def child(self, role: Callable[..., object], *args: Any, name: str = "") -> Child:
        """Start a process; its role gets url, directory of histories and its name first."""
        self._number += 1
        name = name or f"{role.__name__}-{self._number}"
        child = Child(role, name, self.url, str(self.histories), name, *args, plant=self.plant)
        self.resources.callback(child.kill)
        return child

    def program(
        self, role: Callable[..., object], *args: Any, environment: Mapping[str, str]
    ) -> Program:
        """Start a role in an interpreter of its own."""
        program = Program(
            role,
            *(self.url, str(self.histories), role.__name__, *args),
            environment=environment,
            plant=self.plant,
        )
        self.resources.callback(program.kill)
        return program

    def history(self) -> list[Op]:
        """Return what all clients did so far."""
        return read(self.histories)

    def snapshot(self, queue: str = QUEUE) -> Snapshot:
        """Read what the queue holds, past the store; SQS shows nobody, and must be empty."""
        if self.backend == "sqs":
            count = self.connection.mailbox(queue).approximate_count()
            self.violations += [f"stuck: {queue} still has {count} messages"] if count else []
            return Snapshot((), (), ())
        if self.backend == "sqlite":
            return snapshots.of_sqlite(self.path, queue)
        node = self.server
        if self.backend == "cluster":
            node = node.node_for_key(f"{{queue:{queue}}}:data")
        with node.client() as client:
            return snapshots.of_redis(client, queue)

    def drain(
        self, queue: str = QUEUE, *, lease: float = 30.0, within: float = DRAIN_SECONDS
    ) -> list[str]:
        """Receive and acknowledge until nothing is left; return the bodies.

        A queue is stuck if nothing could be acknowledged for ``within`` seconds.
        """
        box, bodies = self.mailbox(queue), []
        limits = box.limits
        self._healed = now()
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            got = box.receive(
                max_messages=min(100, limits.max_batch),
                visibility_timeout=limits.rounded(lease),
                wait_time_seconds=limits.rounded(0.2),
            )
            for message in got:
                try:
                    message.acknowledge()
                    bodies.append(message.body)
                    deadline = time.monotonic() + within
                except ReceiptHandleExpiredError:
                    pass
            if not got and box.approximate_count() == 0:
                return bodies
        self.violations.append(f"stuck: {box.stats()} after {within:g} s of draining")
        return bodies

    def verdict(
        self,
        *,
        dead: Sequence[str] = (),
        trials: int | None = None,
        jumps: bool = False,
        failover: bool = False,
        may_lose: bool = False,
        ordered: bool = False,
        doubled: bool = False,
        recovery: str = "",
        queue: str = QUEUE,
    ) -> Result:
        """Judge the whole history and what is left.

        With ``doubled``, two clients were made to hold one message; SQS never promises that they
        do not, so that on it only what is lost or comes back after its end is wrong.
        """
        ops, left = self.history(), self.snapshot(queue)
        self.violations += checkers.exclusive(left)
        losses = checkers.lost(ops, left.ids, dead)
        if may_lose:
            self.figures["lost, as the server's setting allows"] = len(losses)
        else:
            self.violations += losses
        ops, again = checkers.lives(ops)
        if again:
            self.figures["added again by a repeated send"] = again
        undone = checkers.undone(ops)
        if failover:
            self.figures["acks undone by failover"] = len(undone)
            undone_ids = {text.split()[1] for text in undone}
            ops = [op for op in ops if op.id not in undone_ids]
            apart = checkers.fenced(ops) + checkers.duplicates(ops)
            self.figures["leases undone by failover"] = len(apart)
        else:
            loose = jumps or self.backend == "sqs"
            self.violations += undone
            self.violations += [] if doubled else checkers.fenced(ops, jumps=loose)
            if not loose:
                self.violations += checkers.duplicates(ops)
        if self._healed is not None:
            self.violations += checkers.drained(ops, self._healed, DRAIN_SECONDS, left.ids)
        if ordered:
            self.violations += checkers.first_in_first_out(ops)
        if recovery:
            times = checkers.recoveries(ops, recovery)
            for name, value in checkers.percentiles(times).items():
                self.figures[f"recovery {name}, s"] = round(value, 3)
        sends = sum(op.op == "send" and op.outcome == "ok" for op in ops)
        acks = sum(op.op == "ack" and op.outcome == "ok" for op in ops)
        self.figures |= {"sent": sends, "acknowledged": acks}
        return Result(
            self.trials if trials is None else trials, self.violations, self.figures, self.notes
        )


def redis_binary() -> Path:
    """Return a server to test on."""
    available = servers_available()
    if not available:
        raise NotRun("there is neither redis-server nor valkey-server")
    return next(iter(available.values()))
