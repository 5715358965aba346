"""The store that the seeds describe for Redis, as their scripts say: it must be found wanting.

Send, receive, acknowledge and the reaper are those of 003; where it says nothing (nack, extend,
purge, counts) this does what the same keys suggest.
"""

import time
from collections.abc import Sequence
from typing import Any

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.seam.store import Leased, Leases, Outgoing, QueueStats, Seen

SEND = """
redis.call('HSET', KEYS[3], ARGV[1], ARGV[2])
redis.call('LPUSH', KEYS[1], ARGV[1])
"""
RECEIVE = """
local id = redis.call('RPOP', KEYS[1])
if not id then return nil end
redis.call('ZADD', KEYS[2], ARGV[1], id)
local count = redis.call('HINCRBY', KEYS[4], id .. ':count', 1)
redis.call('HSET', KEYS[4], id .. ':handle', ARGV[2])
return {id, redis.call('HGET', KEYS[3], id), count}
"""
ACKNOWLEDGE = """
local done = redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1] .. ':count', ARGV[1] .. ':handle')
return done
"""


class SeedStore:
    """One queue, by the scripts of the specification."""

    def __init__(self, client: Any, name: str) -> None:
        self.client = client
        self.name = name
        self.shift = 0.0
        self.keys = [
            f"{{queue:{name}}}:{part}" for part in ("pending", "invisible", "data", "meta")
        ]
        self._scripts = {
            "send": client.register_script(SEND),
            "receive": client.register_script(RECEIVE),
            "ack": client.register_script(ACKNOWLEDGE),
        }

    async def put(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            self._run("send", message.id, message.payload)

    async def lease(
        self, count: int, seconds: float, *, acknowledge: Sequence[str] = (), ids: Any = None
    ) -> Leases:
        done = await self.acknowledge(acknowledge)
        self.reap()
        leased = []
        for _ in range(count):
            token = new_id()
            found = self._run("receive", self.now() + seconds, token)
            if found is None:
                break
            id, payload, deliveries = found
            handle = f"{id.decode()}/{token}"
            leased.append(Leased(id.decode(), handle, payload, deliveries, 0, 0.0, 0.0))
        return Leases(leased, done)

    async def acknowledge(self, handles: Sequence[str]) -> list[bool]:
        return [bool(self._run("ack", handle.partition("/")[0])) for handle in handles]

    async def release(self, handles: Sequence[str], delay: float) -> list[bool]:
        done = []
        for handle in handles:
            id = handle.partition("/")[0]
            held = self.client.zscore(self.keys[1], id) is not None
            if held and delay:
                self.client.zadd(self.keys[1], {id: self.now() + delay})
            elif held:
                self.client.zrem(self.keys[1], id)
                self.client.lpush(self.keys[0], id)
            done.append(held)
        return done

    async def extend(self, handles: Sequence[str], seconds: float) -> list[bool]:
        return [
            bool(
                self.client.zadd(
                    self.keys[1], {handle.partition("/")[0]: self.now() + seconds}, xx=True, ch=True
                )
            )
            for handle in handles
        ]

    async def purge(self) -> int:
        count = self.client.hlen(self.keys[2])
        self.client.delete(*self.keys)
        return int(count)

    async def stats(self) -> QueueStats:
        leased = self.client.zcount(self.keys[1], f"({self.now()}", "+inf")
        due = self.client.zcount(self.keys[1], "-inf", self.now())
        return QueueStats(self.client.llen(self.keys[0]) + due, leased, 0, None)

    async def peek(self, limit: int, offset: int = 0) -> list[Seen]:
        ids = [*self.client.lrange(self.keys[0], 0, -1)]
        ids += self.client.zrangebyscore(self.keys[1], "-inf", self.now())
        return [Seen(id.decode(), b"", 0, 0, 0.0) for id in ids]

    def expired(self) -> list[bytes]:
        """The first half of the reaper."""
        return self.client.zrangebyscore(self.keys[1], 0, self.now())  # type: ignore[no-any-return]

    def bring_back(self, expired: Sequence[bytes]) -> None:
        """The second half of the reaper."""
        for id in expired:
            self.client.zrem(self.keys[1], id)
            self.client.lpush(self.keys[0], id)
            self.client.hdel(self.keys[3], id + b":handle")

    def reap(self) -> None:
        self.bring_back(self.expired())

    def pop_then_lease(self, seconds: float, crash: bool) -> None:
        """The receive of 000's table: BRPOP, then ZADD; a process may die between the two."""
        _, id = self.client.brpop(self.keys[0])
        if not crash:
            self.client.zadd(self.keys[1], {id: self.now() + seconds})

    def now(self) -> float:
        return time.time() + self.shift

    def _run(self, name: str, *args: Any) -> Any:
        return self._scripts[name](keys=self.keys, args=args)
