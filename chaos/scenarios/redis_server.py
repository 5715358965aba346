"""The server: killed, full, misconfigured, flushed, and with a clock that jumps."""

import subprocess
import time
from pathlib import Path

from tests.servers import Standalone, servers_available

from chaos.checkers import percentiles
from chaos.history import now
from chaos.processes import faketime_library
from chaos.stage import Load, NotRun, Stage, eventually, scenario
from weakincentives.contrib.mailbox.redis import link
from weakincentives.runtime.mailbox.errors import MailboxConnectionError, MailboxFullError

RECOVER = 20.0


@scenario("redis", full=30, short=1)
def server_kill_always(stage: Stage):
    """kill -9 of a server with appendfsync always, under load"""
    stage.server_options = {"appendonly": "always"}
    _kill_and_restart(stage)
    return stage.verdict()


@scenario("redis", full=10, short=1)
def server_kill_everysec(stage: Stage):
    """kill -9 of a server with appendfsync everysec, under load"""
    _kill_and_restart(stage)
    return stage.verdict(may_lose=True, failover=True)


@scenario("redis", full=5, short=1)
def out_of_memory(stage: Stage):
    """a server at its maxmemory: sending is refused, everything else works, nothing is lost"""
    stage.server_options = {"maxmemory": "6mb", "maxmemory_policy": "noeviction"}
    box = stage.mailbox()
    for _ in range(stage.trials):
        refused = 0
        while refused < 3:
            try:
                box.send_batch(["x" * 2000] * 20)
            except MailboxFullError:
                refused += 1
        kept, given_back = box.receive(max_messages=2, visibility_timeout=60)
        kept.extend_visibility(30)
        kept.acknowledge()
        given_back.nack()
        stage.drain(lease=30)
    return stage.verdict()


@scenario("redis", full=3, short=1)
def eviction_policy_changed(stage: Stage):
    """an eviction policy set on the live server: work is refused until it is taken back"""
    stage.server_options = {"maxmemory": "100mb", "maxmemory_policy": "noeviction"}
    box = stage.mailbox()
    usual, link.RECHECK = link.RECHECK, 0.2
    try:
        for _ in range(stage.trials):
            box.send("before")
            stage.server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            eventually(lambda: _refused(box), 10, "a refusal")
            stage.server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
            eventually(lambda: not _refused(box), 10, "work")
    finally:
        link.RECHECK = usual
    stage.drain()
    return stage.verdict()


@scenario("redis", full=100, short=5)
def script_flush(stage: Stage):
    """SCRIPT FLUSH every 100 ms, under load"""
    load = Load(stage)
    for _ in range(stage.trials):
        time.sleep(0.1)
        stage.server.command("SCRIPT", "FLUSH")
    load.stop()
    stage.violations += load.errors
    stage.drain()
    return stage.verdict(ordered=True)


@scenario("redis", full=10, short=2)
def server_clock_jumps(stage: Stage):
    """the server's clock set forward and back by an hour, under load"""
    offset = stage.directory / "offset"
    offset.write_text("+0")
    wrapper = _under_faketime(stage, offset)
    stage.use(Standalone(wrapper))
    load = Load(stage, lease=2.0)
    for trial in range(stage.trials):
        time.sleep(0.5)
        offset.write_text("+3600" if trial % 2 == 0 else "+0")
        moved = abs(float(stage.server.command("TIME")[0]) - time.time()) > 1800
        if moved != (trial % 2 == 0):
            raise NotRun("the server's clock does not follow libfaketime")
    time.sleep(0.5)
    offset.write_text("+7200")  # beyond every lease that was taken in the hour ahead
    load.stop()
    stage.drain(lease=30)
    return stage.verdict(jumps=True)


@scenario("sqlite", "redis", full=10, short=2)
def client_clock_jumps(stage: Stage):
    """the wall clock of a client set forward and back by an hour: no lease moves"""
    from weakincentives.clock import SystemClock

    usual = SystemClock.time
    box = stage.mailbox()
    load = Load(stage, lease=2.0)
    try:
        for trial in range(stage.trials):
            jump = 3600 if trial % 2 == 0 else -3600
            held = box.receive(visibility_timeout=5, wait_time_seconds=2)
            SystemClock.time = staticmethod(lambda jump=jump: usual() + jump)
            time.sleep(0.2)
            for message in held:
                message.extend_visibility(5)
                message.acknowledge()
    finally:
        SystemClock.time = staticmethod(usual)
    load.stop()
    stage.violations += load.errors
    stage.drain()
    return stage.verdict(ordered=True)


def _kill_and_restart(stage: Stage) -> None:
    load, times = Load(stage, senders=2, consumers=2, lease=1.0), []
    for _ in range(stage.trials):
        before = len(load.successes)
        eventually(lambda before=before: len(load.successes) > before + 50, 30, "load")
        stage.server.kill()
        stage.server.restart()
        times.append(load.recovered(now(), RECOVER))
    load.stop()
    stage.figures |= {
        f"first success after restart {k}, s": round(v, 3) for k, v in percentiles(times).items()
    }
    stage.drain(lease=30)


def _refused(box) -> bool:
    try:
        box.send("x")
    except MailboxConnectionError:
        return True
    return False


def _under_faketime(stage: Stage, offset: Path) -> Path:
    """Return a command that runs a server whose clock is moved by a file."""
    library = faketime_library()
    if library is None:
        raise NotRun("libfaketime cannot be found; WINK_FAKETIME names its file")
    wrapper = stage.directory / "server-under-faketime"
    for binary in servers_available().values():
        wrapper.write_text(
            f"#!/bin/sh\nexport LD_PRELOAD={library} FAKETIME_TIMESTAMP_FILE={offset} "
            f'FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\nexec {binary} "$@"\n'
        )
        wrapper.chmod(0o700)
        # With some allocators libfaketime does not get on; a server without a port ends at once.
        try:
            probe = subprocess.run(
                [wrapper, "--port", "0"],
                cwd=stage.directory,
                capture_output=True,
                text=True,
                check=False,
                timeout=3,
            )
        except subprocess.TimeoutExpired:
            continue
        if "not listen anywhere" in probe.stdout:
            return wrapper
    raise NotRun("libfaketime works with none of the servers that are here")
