"""The queue as the first specification sketched it, and ours, behind one small interface.

Only so that a test of a trap can show that it would have caught the sketch.
"""

import time
from typing import Any

from testkit.servers import Server
from testkit.waiting import eventually
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.contrib.mailbox.redis.resp import pack
from weakincentives.contrib.mailbox.redis.store import RedisStore
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

RECEIVE = """
local msg_id = redis.call('RPOP', KEYS[1])
if not msg_id then return nil end
redis.call('ZADD', KEYS[2], ARGV[1], msg_id)
local data = redis.call('HGET', KEYS[3], msg_id)
local count = redis.call('HINCRBY', KEYS[4], msg_id .. ':count', 1)
redis.call('HSET', KEYS[4], msg_id .. ':handle', ARGV[2])
return {msg_id, data, count}
"""
ACKNOWLEDGE = """
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1] .. ':count', ARGV[1] .. ':handle')
return redis.call('ZREM', KEYS[2], ARGV[1])
"""
NACK = """
if tonumber(ARGV[2]) > 0 then
  return redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
end
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('LPUSH', KEYS[1], ARGV[1])
"""


class Sketch:
    """The scripts and the reaper of the specification."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.pending, self.invisible, self.data, self.meta = self.keys = [
            f"{{queue:trap}}:{part}" for part in ("pending", "invisible", "data", "meta")
        ]

    def send(self, body: str) -> None:
        id = new_id()
        self.client.hset(self.data, id, body)
        self.client.lpush(self.pending, id)

    def receive(self, seconds: float = 30) -> str | None:
        """Return a handle; the sketch's settlements look at the id in it alone."""
        handle = new_id()
        found = self.client.eval(RECEIVE, 4, *self.keys, time.time() + seconds, handle)
        return None if found is None else f"{found[0].decode()} {handle}"

    def die_while_receiving(self, seconds: float) -> None:
        self.client.brpop(self.pending, 1)

    def acknowledge(self, handle: str) -> bool:
        return bool(self.client.eval(ACKNOWLEDGE, 4, *self.keys, handle.split()[0]))

    def nack(self, handle: str, delay: float = 0) -> bool:
        until = time.time() + delay if delay else 0
        return bool(self.client.eval(NACK, 4, *self.keys, handle.split()[0], until))

    def extend(self, handle: str, seconds: float) -> bool:
        score = time.time() + seconds
        return bool(self.client.zadd(self.invisible, {handle.split()[0]: score}, ch=True))

    def expired(self) -> list[bytes]:
        found: list[bytes] = self.client.zrangebyscore(self.invisible, "-inf", time.time())
        return found

    def reap(self, *lists: list[bytes]) -> None:
        """Move what each of several reapers has found."""
        for found in lists or (self.expired(),):
            for id in found:
                self.client.zrem(self.invisible, id)
                self.client.lpush(self.pending, id)

    def reap_twice_at_once(self) -> None:
        self.reap(self.expired(), self.expired())

    def purge(self) -> None:
        self.client.delete(*self.keys)

    def deliverable(self) -> int:
        """How many messages can be received now, by whoever comes."""
        self.reap()
        found = 0
        while self.receive() is not None:
            found += 1
        return found

    def held(self) -> int:
        return int(self.client.hlen(self.data))


class Ours:
    """The same words for a `RedisStore`."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.box: RedisMailbox[Any, Any] = RedisMailbox("trap", client)
        self.store: RedisStore = self.box.store

    def send(self, body: str) -> None:
        driven(self.store.put([Outgoing(new_id(), body.encode())]))

    def receive(self, seconds: float = 30) -> str | None:
        found = driven(self.store.lease(1, seconds)).messages
        return found[0].handle if found else None

    def die_while_receiving(self, seconds: float) -> None:
        """Send what a blocked consumer sends, and be gone before the answer."""
        call = self.store.queue.lease(1, seconds, woken=True)
        wake = pack(b"BZPOPMIN", b"{queue:trap}:wake", 1)
        connection = self.client.connection_pool.connection_class(
            **{**self.client.connection_pool.connection_kwargs, "protocol": 2}
        )
        connection.connect()
        connection.send_packed_command([wake + call.packed_again(as_text=True, repeated=False)])
        connection.disconnect()

    def acknowledge(self, handle: str) -> bool:
        return driven(self.store.acknowledge([handle]))[0]

    def nack(self, handle: str, delay: float = 0) -> bool:
        return driven(self.store.release([handle], delay))[0]

    def extend(self, handle: str, seconds: float) -> bool:
        return driven(self.store.extend([handle], seconds))[0]

    def reap(self) -> None:
        """Whoever receives does it."""

    def reap_twice_at_once(self) -> None:
        """Nobody reaps."""

    def purge(self) -> None:
        driven(self.store.purge())

    def deliverable(self) -> int:
        return len(driven(self.store.lease(1000, 30)).messages)

    def held(self) -> int:
        return sum(driven(self.store.stats())[:3])


def let_pass(server: Server, seconds: float) -> None:
    """Wait until the server's own clock has moved on."""

    def clock() -> float:
        whole, micro = server.command("TIME")
        return int(whole) + int(micro) / 1e6

    ends = clock() + seconds
    eventually(lambda: clock() > ends, seconds + 10, "the server's clock to move on")
