"""Servers and mailboxes for the loops' tests."""

import pytest

from tests.contract.shelf import Shelf
from tests.services import redis_url
from weakincentives.runtime import InMemoryMailbox

__all__ = ["redis_url"]


@pytest.fixture
def box():
    return InMemoryMailbox("jobs")


@pytest.fixture
def replies():
    return InMemoryMailbox("replies")


@pytest.fixture(params=["objects", "json", "bytes"])
def shelf(request):
    """Opens mailboxes that keep objects, objects through JSON, or bytes."""
    if request.param == "bytes":
        return Shelf().mailbox
    return lambda name, **options: InMemoryMailbox(
        name, serialize=request.param == "json", **options
    )


@pytest.fixture
def letters(shelf):
    return shelf("orders-dlq")
