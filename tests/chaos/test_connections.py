"""The scenarios of interrupts notice a connection that is out of step, and one left behind."""

from collections.abc import Iterator

import pytest

from chaos.interrupts import World
from tests.services import redis_url as redis_url
from weakincentives.contrib.mailbox.redis.client import Node, script_client


@pytest.fixture
def world(redis_url: str) -> Iterator[World]:
    world = World(redis_url)
    assert list(world.trouble()) == []
    yield world
    world.close()


def node_of(world: World) -> Node:
    (node,) = script_client(world.backend._client).pool.nodes.values()
    return node


def test_a_connection_with_an_answer_unread_is_found(world: World) -> None:
    (held,) = node_of(world).idle
    held.connection.send_command("TIME")
    (wrong,) = world.trouble()
    assert "to another command" in wrong
    assert list(world.trouble()) == []  # it was not used again


def test_an_answer_that_is_known_to_be_owed_is_none_of_its_business(world: World) -> None:
    (held,) = node_of(world).idle
    held.connection.send_command("TIME")
    held.owed = 1
    assert list(world.trouble()) == []


def test_a_connection_that_is_left_behind_is_found(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chaos.connections.PATIENCE", 0.1)
    held = node_of(world).idle.pop()
    assert list(world.trouble()) == ["1 connections at the server, 0 of them kept"]
    held.connection.disconnect()
