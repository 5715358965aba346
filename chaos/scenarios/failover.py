"""Primaries that die and are replaced, replicas that were cut off, and slots that move."""

import time

from chaos.checkers import percentiles
from chaos.history import now
from chaos.load import Load
from chaos.stage import QUEUE, Stage, scenario
from testkit.waiting import eventually

KEY = f"{{queue:{QUEUE}}}:data"


@scenario("sentinel", "sentinel+asyncio", full=10, short=1)
def primary_killed(stage: Stage):
    """kill -9 of the primary under Sentinel, under load; every ok send was on a replica"""
    trio, times = _start(stage), []
    load = Load(stage, lease=2.0)
    for _ in range(stage.trials):
        _await_load(load)
        old, died = trio.kill_primary(), now()
        trio.wait_for_failover(old)
        times.append(load.recovered(died, 60))
        trio.revive(old)
    return _judged(stage, load, times)


@scenario("sentinel", "sentinel+asyncio", full=5, short=1)
def machine_lost(stage: Stage):
    """the primary killed and a sentinel silent from then on, as when their machine is lost"""
    trio, times = _start(stage), []
    load = Load(stage, lease=2.0)
    for trial in range(stage.trials):
        _await_load(load)
        sentinel = trio.sentinel_servers[trial % len(trio.sentinel_servers)]
        sentinel.pause()
        old, died = trio.kill_primary(), now()
        trio.wait_for_failover(old)
        times.append(load.recovered(died, 60))
        trio.revive(sentinel)
        trio.revive(old)
    return _judged(stage, load, times)


@scenario("cluster", "cluster+asyncio", full=10, short=1)
def shard_primary_killed(stage: Stage):
    """kill -9 of the shard's primary in a cluster, under load; every ok send was on a replica"""
    cluster, times = _start(stage), []
    load = Load(stage, lease=2.0)
    for _ in range(stage.trials):
        _await_load(load)
        old, died = cluster.node_for_key(KEY), now()
        cluster.kill(old)
        cluster.wait_for_failover(old)
        # The replica that could confirm a send is the one that died: it has to come back first.
        cluster.revive(old)
        times.append(load.recovered(now(), 60))
        stage.figures["longest failover, s"] = round(
            max(stage.figures.get("longest failover, s", 0), now() - died), 3
        )
    return _judged(stage, load, times, "the shard was whole again")


@scenario("sentinel", full=5, short=1)
def replica_cut_then_primary_killed(stage: Stage):
    """replicas frozen, so that sends cannot be confirmed, then the primary killed"""
    trio, times = _start(stage), []
    load = Load(stage, lease=2.0)
    for _ in range(stage.trials):
        _await_load(load)
        replicas = trio.replicas()
        for replica in replicas:
            replica.pause()
        time.sleep(1.5)  # long enough for a send to learn that nobody confirms it
        old, died = trio.kill_primary(), now()
        for replica in replicas:
            replica.resume()
        trio.wait_for_failover(old)
        times.append(load.recovered(died, 60))
        trio.revive(old)
    unconfirmed = sum("replicas have the message" in error for error in load.errors)
    stage.figures["sends refused for want of a replica"] = unconfirmed
    return _judged(stage, load, times)


@scenario("cluster", "cluster+asyncio", full=20, short=2)
def slot_moves(stage: Stage):
    """the queue's slot moved to another primary, key by key, under load"""
    cluster = _start(stage, min_replicas=0)
    slot = _slot(cluster)
    load = Load(stage, lease=5.0)
    for _ in range(stage.trials):
        _await_load(load)
        here = cluster.node_for_slot(slot)
        primaries = [cluster.primary_of(shard[0]) for shard in cluster.shards]
        cluster.migrate_slot(slot, next(node for node in primaries if node is not here))
    load.stop()
    stage.violations += load.errors
    stage.drain(lease=30)
    return stage.verdict(ordered=True)


def _start(stage: Stage, min_replicas: int = 1):
    stage.server_options = {"directives": ["appendonly yes"]}
    stage.reach(f"{stage.url}?min_replicas={min_replicas}")
    return stage.server


def _slot(cluster) -> int:
    from redis.crc import key_slot

    return key_slot(KEY.encode())


def _await_load(load: Load) -> None:
    before = len(load.successes)
    eventually(lambda: len(load.successes) > before + 30, 120, "load")


def _judged(stage: Stage, load: Load, times: list[float], since: str = "the fault"):
    load.stop()
    stage.figures |= {
        f"first success after {since} {k}, s": round(v, 3) for k, v in percentiles(times).items()
    }
    stage.drain(lease=30)
    return stage.verdict(failover=True)
