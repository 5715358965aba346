"""The model and the code agree: every interleaving of two clients, on the real stores."""

import itertools
from typing import Any

from chaos.interleavings import BEYOND, Stand, explore
from chaos.stage import Result, Stage, scenario
from weakincentives.contrib.mailbox.redis.client import script_client
from weakincentives.contrib.mailbox.redis.queue import Queue
from weakincentives.contrib.mailbox.redis.store import RedisStore
from weakincentives.contrib.mailbox.sqlite import SQLiteStore
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox.memory.store import InMemoryStore

MILLISECONDS = 1000

# Moves what is stored instead of the clock: every deadline of the queue comes that much earlier.
MOVE_DEADLINES = """
for _, key in ipairs(KEYS) do
  local members = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  for i = 1, #members, 2 do
    redis.call('ZADD', key, members[i + 1] - ARGV[1], members[i])
  end
end
"""


@scenario("memory", full=7, short=5)
def interleavings_in_memory(stage: Stage):
    """all programs of two clients of so many steps, each step compared with the model"""
    return explored(stage, memory_stand)


@scenario("sqlite", full=6, short=4)
def interleavings_in_a_file(stage: Stage):
    """all programs of two clients of so many steps against the real SQL, with a moved clock"""
    clock = FakeClock()
    database = open_database(stage.path, "normal", clock=clock, boot_id="one boot")
    stage.resources.callback(database.close)
    numbers = itertools.count()

    def stand() -> Stand:
        store = SQLiteStore(database, f"q{next(numbers)}")
        return Stand(store, lambda: clock.advance(BEYOND))

    return explored(stage, stand)


@scenario("redis", full=6, short=4)
def interleavings_on_a_server(stage: Stage):
    """all programs of two clients of so many steps against the real Lua, with moved deadlines"""
    client = stage.resources.enter_context(stage.server.client())
    numbers = itertools.count()
    return explored(stage, lambda: redis_stand(client, f"q{next(numbers)}"))


def explored(stage: Stage, stand: Any) -> Result:
    """Explore to the depth that the scale says; the trials are programs."""
    depth = stage.trials
    count, steps, wrong = explore(depth, stand)
    return Result(count, wrong, {"depth": depth, "steps": steps})


def memory_stand(store_class: Any = InMemoryStore) -> Stand:
    """An in-memory store, or a mutant of it, on a clock of its own."""
    clock = FakeClock()
    return Stand(store_class("jobs", clock=clock), lambda: clock.advance(BEYOND))


def redis_stand(client: Any, name: str, store_class: Any = RedisStore) -> Stand:
    """A queue of its own on a server."""
    queue = Queue(name, max_size=None, retention=None, min_replicas=0)
    keys = [f"{{queue:{name}}}:{part}" for part in ("invisible", "delayed")]
    move = client.register_script(MOVE_DEADLINES)
    return Stand(
        store_class(script_client(client), queue),
        lambda: move(keys=keys, args=[int(BEYOND * MILLISECONDS)]),
    )
