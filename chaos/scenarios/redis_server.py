"""The server: killed, full, misconfigured and flushed."""

import time

from chaos.checkers import percentiles
from chaos.history import now
from chaos.load import Load
from chaos.stage import Stage, scenario
from testkit.waiting import eventually
from weakincentives.contrib.mailbox.redis import client as redis_client
from weakincentives.runtime.mailbox.errors import MailboxConnectionError, MailboxFullError

RECOVER = 20.0


@scenario("redis", "redis+asyncio", full=30, short=1)
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
    usual, redis_client.RECHECK = redis_client.RECHECK, 0.2
    try:
        for _ in range(stage.trials):
            box.send("before")
            stage.server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
            eventually(lambda: _refused(box), 120, "a refusal")
            stage.server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
            eventually(lambda: not _refused(box), 120, "work")
    finally:
        redis_client.RECHECK = usual
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


def _kill_and_restart(stage: Stage) -> None:
    load, times = Load(stage, senders=2, consumers=2, lease=1.0), []
    for _ in range(stage.trials):
        before = len(load.successes)
        eventually(lambda before=before: len(load.successes) > before + 50, 120, "load")
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
