from typing import Any

import pytest

from weakincentives.runtime.mailbox import (
    CompositeResolver,
    InMemoryMailbox,
    InMemoryMailboxFactory,
    InvalidParameterError,
    MailboxResolutionError,
    MailboxResolver,
    RegistryResolver,
)

alerts = InMemoryMailbox[str, None]("alerts")


def test_the_registry_comes_first() -> None:
    resolver: MailboxResolver = CompositeResolver({"alerts": alerts}, InMemoryMailboxFactory())
    assert resolver.resolve("alerts") is alerts


def test_the_factory_makes_the_rest() -> None:
    factory = InMemoryMailboxFactory()
    resolver = CompositeResolver(registry={}, factory=factory)
    made = resolver.resolve("client-1")
    assert made.name == "client-1"
    assert made is resolver.resolve("client-1") is factory.create("client-1")


def test_a_registry_may_grow() -> None:
    registry: dict[str, InMemoryMailbox[str, None]] = {}
    resolver = RegistryResolver(registry)
    assert resolver.resolve_optional("alerts") is None
    registry["alerts"] = alerts
    assert resolver.resolve_optional("alerts") is alerts


@pytest.mark.parametrize("resolver", [RegistryResolver({"alerts": alerts}), CompositeResolver()])
def test_without_a_factory_the_rest_is_unknown(resolver: CompositeResolver) -> None:
    with pytest.raises(MailboxResolutionError, match="client-1") as caught:
        resolver.resolve("client-1")
    assert caught.value.identifier == "client-1"
    assert resolver.resolve_optional("client-1") is None


def test_a_name_that_cannot_be_made_is_a_resolution_error() -> None:
    resolver = CompositeResolver(factory=InMemoryMailboxFactory())
    with pytest.raises(MailboxResolutionError, match="no spaces") as caught:
        resolver.resolve("no spaces")
    assert isinstance(caught.value.__cause__, InvalidParameterError)


def test_whatever_a_factory_raises_is_a_resolution_error() -> None:
    class Broken:
        def create(self, identifier: str) -> Any:
            raise LookupError("no such region")

    resolver = CompositeResolver(factory=Broken())
    with pytest.raises(MailboxResolutionError, match="LookupError: no such region") as caught:
        resolver.resolve("client-1")
    assert caught.value.identifier == "client-1"
    assert isinstance(caught.value.__cause__, LookupError)
    assert resolver.resolve_optional("client-1") is None


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("client-1", True),
        ("client-", True),
        ("orders", True),
        ("Orders", False),
        ("orders-dlq", False),
        ("evil:client-1", False),
    ],
)
def test_senders_reach_only_allowed_names(name: str, allowed: bool) -> None:
    resolver = CompositeResolver({}, InMemoryMailboxFactory(), allow=["client-*", "orders"])
    assert (resolver.resolve_optional(name) is not None) == allowed
    if not allowed:
        with pytest.raises(MailboxResolutionError, match="not allowed"):
            resolver.resolve(name)


def test_what_is_registered_needs_no_permission() -> None:
    resolver = CompositeResolver({"alerts": alerts}, InMemoryMailboxFactory(), allow=[])
    assert resolver.resolve("alerts") is alerts
    assert resolver.resolve_optional("other") is None


def test_permission_may_come_from_an_iterator() -> None:
    resolver = CompositeResolver({}, InMemoryMailboxFactory(), allow=iter(["a"]))
    assert resolver.resolve("a") is resolver.resolve("a")


def test_a_single_text_as_permission_is_a_mistake() -> None:
    with pytest.raises(InvalidParameterError, match="list of names"):
        CompositeResolver({}, InMemoryMailboxFactory(), allow="client-*")


def test_resolvers_may_say_what_their_mailboxes_take() -> None:
    registry = {"alerts": alerts}
    known: RegistryResolver[str] = RegistryResolver[str](registry)
    composite: CompositeResolver[str] = CompositeResolver[str](registry, InMemoryMailboxFactory())
    for resolver in (known, composite):
        assert isinstance(resolver, MailboxResolver)
        assert resolver.resolve("alerts") is alerts
    assert composite.resolve("client-1").name == "client-1"
