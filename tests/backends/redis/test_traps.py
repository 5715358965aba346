"""Ways in which queues on Redis lose, double or misplace messages.

Each scenario must hold for ours, and must fail for the sketch in the first specification:
a test that cannot tell them apart tests nothing.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from importlib.resources import files
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import RedisError

from testkit.servers import Standalone
from tests.backends.redis.seeds import Ours, Sketch, let_pass
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.runtime.mailbox import InvalidParameterError, MailboxError

LEASE = 0.1

Queue = Any


def a_consumer_that_dies_while_receiving_loses_nothing(queue: Queue, server: Standalone) -> None:
    queue.send("work")
    queue.die_while_receiving(LEASE)
    for _ in range(10):
        if queue.deliverable() == 1:
            return
        let_pass(server, LEASE)
    raise AssertionError("the message did not come back")


def a_script_that_fails_half_way_loses_nothing(queue: Queue, server: Standalone) -> None:
    queue.send("work")
    server.command("SET", "{queue:trap}:invisible", "of the wrong type")
    with suppress(RedisError, MailboxError):
        queue.receive(LEASE)
    if server.command("TYPE", "{queue:trap}:invisible") == "string":
        server.command("DEL", "{queue:trap}:invisible")
    let_pass(server, 2 * LEASE)
    assert queue.deliverable() == 1


def a_handle_dies_with_its_lease(queue: Queue, server: Standalone) -> None:
    queue.send("work")
    handle = queue.receive(LEASE)
    let_pass(server, 2 * LEASE)
    assert not queue.acknowledge(handle)
    assert queue.held() == 1


def a_zombie_cannot_acknowledge_what_another_holds(queue: Queue, server: Standalone) -> None:
    stale = stolen(queue, server)
    assert not queue.acknowledge(stale)
    assert queue.held() == 1


def a_zombie_cannot_give_back_what_another_holds(queue: Queue, server: Standalone) -> None:
    stale = stolen(queue, server)
    assert not queue.nack(stale)
    assert queue.deliverable() == 0


def a_zombie_cannot_extend_what_another_holds(queue: Queue, server: Standalone) -> None:
    stale = stolen(queue, server)
    assert not queue.extend(stale, 60)


def stolen(queue: Queue, server: Standalone) -> str:
    """Return the handle of a consumer whose message another one has now."""
    queue.send("work")
    stale: str = queue.receive(LEASE)
    let_pass(server, 2 * LEASE)
    queue.reap()
    assert queue.receive(60) is not None
    return stale


def two_reapers_double_nothing(queue: Queue, server: Standalone) -> None:
    queue.send("work")
    queue.receive(LEASE)
    let_pass(server, 2 * LEASE)
    queue.reap_twice_at_once()
    assert queue.deliverable() == 1


def a_handle_does_not_reach_a_delayed_message(queue: Queue, server: Standalone) -> None:
    queue.send("work")
    handle = queue.receive(60)
    assert queue.nack(handle, delay=60)
    assert not queue.acknowledge(handle)
    assert queue.held() == 1


def a_nack_after_a_purge_makes_no_ghost(queue: Queue, server: Standalone) -> None:
    queue.send("work")
    handle = queue.receive(60)
    queue.purge()
    queue.nack(handle)
    assert queue.deliverable() == 0


def an_extension_after_a_purge_makes_no_ghost(queue: Queue, server: Standalone) -> None:
    queue.send("work")
    handle = queue.receive(60)
    queue.purge()
    queue.extend(handle, LEASE)
    let_pass(server, 2 * LEASE)
    assert queue.deliverable() == 0


SCENARIOS = [
    a_consumer_that_dies_while_receiving_loses_nothing,  # trap 1
    a_script_that_fails_half_way_loses_nothing,  # trap 2
    a_handle_dies_with_its_lease,  # trap 3
    a_zombie_cannot_acknowledge_what_another_holds,
    a_zombie_cannot_give_back_what_another_holds,
    a_zombie_cannot_extend_what_another_holds,
    two_reapers_double_nothing,  # trap 4
    a_handle_does_not_reach_a_delayed_message,  # trap 7
    a_nack_after_a_purge_makes_no_ghost,  # trap 8
    an_extension_after_a_purge_makes_no_ghost,
]

Scenario = Callable[[Queue, Standalone], None]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_ours_holds(scenario: Scenario, server: Standalone, client: Any) -> None:
    scenario(Ours(client), server)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_the_sketch_does_not(scenario: Scenario, server: Standalone, client: Any) -> None:
    with pytest.raises(AssertionError):
        scenario(Sketch(client), server)


# Trap 4: what expired comes back soon, however much it is.


def test_a_thousand_expired_leases_are_back_at_once(
    box: RedisMailbox[Any, Any], server: Standalone
) -> None:
    box.send_batch(list(range(1000)))
    assert len(box.receive(max_messages=1000, visibility_timeout=LEASE)) == 1000
    let_pass(server, LEASE)
    looks, back = 0, 0
    while back < 1000:
        back += len(box.receive(max_messages=1000, wait_time_seconds=1))
        looks += 1
    assert looks <= 4


# Trap 5: queues never vanish by themselves.


def test_no_key_with_messages_expires(box: RedisMailbox[Any, Any], server: Standalone) -> None:
    box.send_batch([1, 2, 3])
    box.send(4, delay_seconds=60)
    box.receive()
    box.send(5, message_id="mine")
    ttls = {key: server.command("PTTL", key) for key in server.command("KEYS", "{queue:*")}
    # Ids that senders chose are remembered for five minutes, and the token wakes those who wait:
    # no message is in there.
    assert ttls.pop("{queue:box}:sent") > 0
    assert ttls.pop("{queue:box}:wake") > 0
    assert len(ttls) == 4
    assert set(ttls.values()) == {-1}


# Trap 6: all keys of a queue in one slot, all of them declared.


def test_all_keys_share_a_slot(box: RedisMailbox[Any, Any], server: Standalone) -> None:
    box.send(1, message_id="mine")
    box.send(2, delay_seconds=60)
    box.receive()
    assert len({key_slot(key.encode()) for key in server.command("KEYS", "*")}) == 1
    # The sketch's reaper looked into another slot than its queue.
    assert key_slot(b"{queue:name}:invisible") != key_slot(b"{name}:invisible")


@pytest.mark.parametrize("name", ["a{b}", "{a}", "a}b", "", "x" * 81, "a b", "ä", "a\n", 5])
def test_names_cannot_break_the_hash_tag(name: Any, client: Any) -> None:
    with pytest.raises(InvalidParameterError):
        RedisMailbox(name, client)


def test_scripts_declare_their_keys() -> None:
    folder = files("weakincentives.contrib.mailbox.redis") / "scripts"
    scripts = [path for path in folder.iterdir() if path.name.endswith(".lua")]
    assert len(scripts) >= 8
    for script in scripts:
        text = script.read_text()
        assert text.startswith("#!lua"), script.name
        header = text[: text.index("\n\n")]
        for number in set(re.findall(r"KEYS\[(\d)\]", text)):
            assert re.search(rf"(KEYS  |--       ){number} \w+ +[A-Z]+", header), script.name
        # A key is a variable or KEYS[n], never a text made up on the spot.
        assert not re.search(r"redis\.call\('[A-Z]+', *['\"]", text), script.name
