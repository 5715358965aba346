"""Peers that send rubbish: payloads, handles, keys of the wrong type, and HTTP."""

import random
import socket
import threading
import time
import urllib.request

import apsw

from chaos.checkers import percentiles
from chaos.stage import QUEUE, Result, Stage, scenario
from testkit.ports import HOST
from testkit.waiting import eventually
from weakincentives.runtime import Backoff, DLQPolicy, LoopGroup, Worker
from weakincentives.runtime.mailbox.errors import MailboxError
from weakincentives.runtime.mailbox.testing import driven
from weakincentives.runtime.worker.worker import WorkerConfig

NOW = Backoff(base=0.001, cap=0.001)


@scenario("sqlite", "redis", full=1000, short=40)
def fuzzed_payloads(stage: Stage):
    """stored bytes that are no envelope: the loop lives, each is handled or a dead letter"""
    box, dead = stage.mailbox(body_type=dict[str, int]), stage.connection.mailbox("dead")
    good = {"v": 1}
    ids = {box.send(good) for _ in range(stage.trials)}
    sample = bytes(box.peek(1)[0].payload)
    _overwrite(stage, {id: fuzzed(stage.rng, sample) for id in ids})
    handled: list[object] = []
    worker = Worker(
        box,
        handled.append,
        dlq=DLQPolicy(dead, max_delivery_count=1),
        config=WorkerConfig(backoff=NOW, batch=10),
    )
    thread = threading.Thread(target=worker.run, kwargs={"wait_time_seconds": 1}, daemon=True)
    thread.start()
    eventually(lambda: box.approximate_count() == 0 or not thread.is_alive(), 120, "the last")
    if not thread.is_alive():
        stage.violations.append("the loop died")
    worker.shutdown(timeout=10)
    letters = dead.approximate_count()
    if len(handled) + letters != stage.trials:
        stage.violations.append(f"{len(handled)} handled and {letters} dead of {stage.trials}")
    stage.figures |= {"handled": len(handled), "dead letters": letters}
    return stage.verdict()


@scenario("sqlite", "redis", full=2000, short=100)
def fuzzed_handles(stage: Stage):
    """made-up receipt handles: none is accepted, none breaks anything"""
    box = stage.mailbox()
    box.send("x")
    (message,) = box.receive(visibility_timeout=600)
    real = message.receipt_handle
    for _ in range(stage.trials):
        handle = fuzzed(stage.rng, real.encode()).decode("utf-8", "replace")
        if handle == real:
            continue
        for step in (
            lambda h: driven(box.store.acknowledge([h])),
            lambda h: driven(box.store.release([h], 0)),
            lambda h: driven(box.store.extend([h], 10)),
        ):
            try:
                if any(step(handle)):
                    stage.violations.append(f"stale: the handle {handle!r} was accepted")
            except (MailboxError, ValueError):
                pass
    message.acknowledge()
    return stage.verdict()


@scenario("redis", full=5000, short=200)
def fuzzed_records(stage: Stage):
    """records that are not ours in every key of a queue: each good message comes, no step fails"""
    box, wrong = stage.mailbox(), stage.violations
    sample = b"id|1763400000000|1|0|1763400000000"
    with stage.server.client() as client:
        for trial in range(stage.trials):
            record = fuzzed(stage.rng, sample)
            if trial % 2:
                client.hset(f"{{queue:{QUEUE}}}:data", record.partition(b"|")[0], b'{"b":0}')
            place = stage.rng.choice(("pending", "invisible", "delayed"))
            if place == "pending":
                client.rpush(f"{{queue:{QUEUE}}}:{place}", record)
            else:
                client.zadd(f"{{queue:{QUEUE}}}:{place}", {record: stage.rng.randrange(10**6)})
            sent = box.send("good")
            try:
                box.stats()
                box.peek()
                found: set[str] = set()
                while sent not in found:
                    messages = box.receive(max_messages=10)
                    if not messages:
                        wrong.append(f"lost: a message behind {record[:80]!r}")
                        break
                    found |= {message.id for message in messages}
                    box.acknowledge_batch(messages)
            except Exception as error:
                wrong.append(f"{record[:80]!r} in {place}: {type(error).__name__}: {error}")
    return Result(stage.trials, wrong, {"set aside, last hundred": box.stats().unreadable})


@scenario("redis", full=36, short=36)
def garbage_in_every_key(stage: Stage):
    """a value of each Redis type in each key: a typed error at most, and a queue that heals"""
    wrong, trials = stage.violations, 0
    with stage.server.client() as client:
        for part in ("pending", "invisible", "data", "delayed", "wake", "sent"):
            for kind, write in GARBAGE.items():
                trials += 1
                queue = f"{part}-{kind}"
                key = f"{{queue:{queue}}}:{part}"
                box = stage.connection.mailbox(queue)
                kept = box.send("kept")
                (message,) = box.receive(visibility_timeout=600)
                backup = client.dump(key)
                client.delete(key)
                write(client, key)
                for step in (
                    lambda box=box: box.send("x", message_id="mine"),
                    lambda box=box: box.send("x", delay_seconds=60),
                    lambda box=box: box.receive(max_messages=10, wait_time_seconds=0.01),
                    lambda box=box: box.stats(),
                    lambda box=box: box.peek(),
                    lambda message=message: message.extend_visibility(600),
                ):
                    try:
                        step()
                    except MailboxError:
                        pass
                    except Exception as error:
                        wrong.append(f"{kind} in {part}: {type(error).__name__}: {error}")
                client.delete(key)
                if backup is not None:
                    client.restore(key, 0, backup)
                if part in ("pending", "delayed", "wake", "sent") and not _settles(message):
                    wrong.append(f"{kind} in {part}: {kept} could not be acknowledged after")
                box.purge()
                box.send("again")
                if len(box.receive()) != 1:
                    wrong.append(f"{kind} in {part}: the queue does not heal")
    return Result(trials, wrong)


@scenario("memory", full=500, short=30)
def fuzzed_http(stage: Stage):
    """rubbish, half requests and slow ones against the health server, which goes on answering"""
    box = stage.connection.mailbox(QUEUE)
    group = LoopGroup([Worker(box, lambda body: None)], health_port=0)
    thread = threading.Thread(
        target=group.run, kwargs={"install_signals": False, "wait_time_seconds": 1}, daemon=True
    )
    thread.start()
    eventually(lambda: group.health_address is not None and group.ready().ok, 120, "readiness")
    address, times, slow = group.health_address, [], []
    try:
        for trial in range(stage.trials):
            link = socket.create_connection(address, timeout=5)
            try:
                link.sendall(fuzzed(stage.rng, b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"))
            except OSError:
                pass
            if trial % 5 == 0:
                slow.append(link)  # never says another word
            else:
                link.close()
            if trial % 10 == 0:
                began = time.monotonic()
                with urllib.request.urlopen(
                    f"http://{HOST}:{address[1]}/health/live", timeout=5
                ) as answer:
                    if answer.status != 200:
                        stage.violations.append(f"liveness answered {answer.status}")
                times.append(time.monotonic() - began)
    except OSError as error:
        stage.violations.append(f"the probe failed: {error!r}")
    for link in slow:
        link.close()
    if not group.shutdown(timeout=20):
        stage.violations.append("the group did not end")
    figures = {f"probe {k}, s": round(v, 4) for k, v in percentiles(times).items()}
    return Result(stage.trials, stage.violations, figures)


def fuzzed(rng: random.Random, sample: bytes) -> bytes:
    """Return something that is not quite, or not at all, like the sample."""
    draw = rng.randrange(7)
    if draw == 0:
        return rng.randbytes(rng.randrange(200))
    if draw == 1:
        return sample[: rng.randrange(len(sample))]
    if draw == 2:
        return sample + rng.randbytes(rng.randrange(1, 20))
    if draw == 3:
        return b"[" * rng.randrange(1, 100_000)
    if draw == 4:
        return (
            b'{"' + rng.randbytes(10).hex().encode() + b'":' + b"9" * rng.randrange(1, 5000) + b"}"
        )
    changed = bytearray(sample)
    for _ in range(rng.randrange(1, 6)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


GARBAGE = {
    "string": lambda client, key: client.set(key, "garbage"),
    "list": lambda client, key: client.rpush(key, "garbage", "|", "a|b|c|d|e|f"),
    "set": lambda client, key: client.sadd(key, "garbage"),
    "zset": lambda client, key: client.zadd(key, {"garbage": 1, "a|b": 2, "": 3}),
    "hash": lambda client, key: client.hset(key, "garbage", "garbage"),
    "stream": lambda client, key: client.xadd(key, {"garbage": "garbage"}),
}


def _settles(message) -> bool:
    try:
        return message.acknowledge()
    except MailboxError:
        return False


def _overwrite(stage: Stage, payloads: dict[str, bytes]) -> None:
    if stage.backend == "sqlite":
        connection = apsw.Connection(str(stage.path))
        connection.set_busy_timeout(10_000)
        with connection:
            connection.executemany(
                "UPDATE waiting SET payload = ?2 WHERE id = ?1", list(payloads.items())
            )
        connection.close()
        return
    with stage.server.client() as client:
        client.hset(f"{{queue:{QUEUE}}}:data", mapping=payloads)
