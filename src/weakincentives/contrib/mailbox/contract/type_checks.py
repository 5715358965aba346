"""Tests that a body or a reply that does not fit its declared type is refused when it is sent."""

from dataclasses import dataclass
from typing import Any

import pytest

from weakincentives.runtime.mailbox.errors import SerializationError
from weakincentives.runtime.mailbox.resolver import RegistryResolver

from .harness import Harness
from .round_trip import ITEM, Finished, Item, Started

__all__ = ["TypeChecks"]


@dataclass(frozen=True)
class Restarted(Started):
    """Adds a field, which would be lost."""

    reason: str = ""


@dataclass(frozen=True)
class Begun(Started):
    """Adds nothing that could be lost."""


# The declared type, a body that fits, and one that does not.
CASES: dict[str, tuple[Any, Any, Any]] = {
    "class": (Item, ITEM, {"name": "bolt"}),
    "subclass": (Started, Begun(1), Restarted(1, "crash")),
    "union": (Started | Finished | None, Finished(1), ITEM),
    "list": (list[Item], [ITEM], (ITEM,)),
    "number": (float, 1, True),
}


class TypeChecks(Harness):
    """A value whose class does not fit the declared type is refused before it is stored."""

    @pytest.mark.parametrize("kind", CASES)
    def test_a_body_that_does_not_fit_is_refused_at_send(self, kind: str) -> None:
        declared, fitting, misfit = CASES[kind]
        box = self.mailbox(body_type=declared)
        with pytest.raises(SerializationError, match="body_type"):
            box.send(misfit)
        with pytest.raises(SerializationError, match="body_type"):
            box.send_batch([fitting, misfit])
        assert box.receive() == []
        box.send(fitting)
        assert _of_the_declared_class(self.take_one(box).body, fitting)

    def test_a_question_that_does_not_fit_is_refused(self) -> None:
        box = self.mailbox(body_type=Item)
        reply = self.ask(box, ITEM)
        with pytest.raises(SerializationError, match="a str does not fit body_type=Item"):
            box.send_expecting_reply("bolt")
        assert self.take_one(box).body == ITEM
        assert box.receive() == []
        reply.cancel()

    def test_a_reply_that_does_not_fit_is_refused(self) -> None:
        box = self.mailbox(reply_type=Item)
        reply = self.ask(box)
        message = self.take_one(box)
        with pytest.raises(SerializationError, match="a str does not fit reply_type=Item"):
            message.reply("bolt")
        with pytest.raises(SerializationError, match="reply_type"):
            message.reply_channel.send("bolt")
        assert not message.is_finalized
        message.reply(ITEM)
        assert reply.wait(timeout=60) == ITEM

    def test_a_reply_to_a_mailbox_is_checked_too(self) -> None:
        replies = self.mailbox()
        resolver = RegistryResolver({replies.name: replies.raw})
        requests = self.mailbox(reply_type=Item, reply_resolver=resolver)
        requests.send("work", reply_to=replies)
        message = self.take_one(requests)
        with pytest.raises(SerializationError, match="reply_type"):
            message.reply("bolt")
        assert replies.receive() == []
        message.reply(ITEM)
        assert len(self.take(replies)) == 1
        assert message.acknowledge() is True

    def test_items_and_fields_are_not_looked_at(self) -> None:
        box = self.mailbox(body_type=list[int])
        box.send(["a"])
        message = self.take_one(box)
        if not self.keeps_bodies(box):
            with pytest.raises(SerializationError):
                _ = message.body
        assert message.acknowledge() is True

    def test_any_declares_nothing(self) -> None:
        box = self.mailbox(body_type=Any)
        for body in (1, "a", None, [True], {"a": 1.5}):
            box.send(body)
            assert self.drain(box) == [body]


def _of_the_declared_class(body: Any, sent: Any) -> bool:
    """Return whether a body came back; one of a subclass comes back as the declared class."""
    return bool(body == sent) or (isinstance(sent, Begun) and body == Started(sent.at))
