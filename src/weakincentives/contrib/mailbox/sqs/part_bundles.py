"""Parts of a reply in DynamoDB: what one call emits is one item, a bundle.

A bundle's ``id`` is that of the reply, ``#`` and its number; no reply's id has a ``#``. It has
``first`` (the index of its first part), ``series``, ``size`` in bytes and ``payloads``. The reply's
own item has ``parts`` (how many were emitted), ``bundles`` (how many there were), ``oldest`` (the
number of the first bundle that is left), ``bytes`` (how many are kept) and ``emitter``, which names
the write that made it so. A bundle is written before these figures, so that a reader finds each
part that it is told of; ``created`` and ``series`` keep an earlier start from writing over a later
one's.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.seam.reply_table import (
    MOST_PART_BYTES,
    MOST_PARTS,
    PartRow,
    ReplyState,
)

__all__ = ["Item", "PartBundles", "Refused", "key_of", "number", "number_in"]

MOST_IN_BUNDLE = 256 * 1024
"""Bytes; an item may have 400 kB."""
MOST_READ_BYTES = 1024 * 1024

IS_NO_LATER = (
    "attribute_not_exists(id) OR #created < :created "
    "OR (#created = :created AND #series <= :series)"
)

Item = dict[str, dict[str, Any]]
Call = Callable[[str, dict[str, Any]], dict[str, Any]]


class Refused(Exception):
    """A condition did not hold."""


class PartBundles:
    """Adds, reads and removes the bundles of replies in one table."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def bundled(self, payloads: Sequence[bytes]) -> Iterator[list[bytes]]:
        """Divide payloads into bundles that fit into an item each."""
        bundle: list[bytes] = []
        for payload in payloads:
            if bundle and sum(map(len, bundle)) + len(payload) > MOST_IN_BUNDLE:
                yield bundle
                bundle = []
            bundle.append(payload)
        if bundle:
            yield bundle

    def add(self, item: Item, payloads: Sequence[bytes]) -> bool:
        """Add a bundle to the reply with this item; False if the item has changed meanwhile."""
        emitted, bundles = _count(item, "parts"), _count(item, "bundles")
        size = sum(map(len, payloads))
        held = _count(item, "bytes") + size
        try:
            self._put(item, bundles, emitted, size, payloads)
            self._count_in(item, bundles, emitted + len(payloads), held)
        except Refused:
            return False
        if emitted + len(payloads) > MOST_PARTS or held > MOST_PART_BYTES:
            self._drop_oldest(item, emitted + len(payloads), bundles, held)
        return True

    def read(self, item: Item, first: int, limit: int) -> list[PartRow]:
        """Return up to ``limit`` parts from index ``first`` on, not many more than a mebibyte."""
        rows: list[PartRow] = []
        end, size = _count(item, "bundles"), 0
        if first >= _count(item, "parts"):
            return []
        at = self._bundle_with(item, first)
        while at < end and len(rows) < limit and size < MOST_READ_BYTES:
            bundle = self._bundle(item, at)
            if bundle is not None:
                size += _count(bundle, "size")
                series, begins = _count(bundle, "series"), _count(bundle, "first")
                rows += [
                    PartRow(index, series, bytes(payload["B"]))
                    for index, payload in enumerate(bundle["payloads"]["L"], begins)
                    if index >= first
                ]
            at += 1
        return rows[:limit]

    def remove(self, item: Item) -> None:
        """Remove what is left of the bundles of a reply that was removed."""
        for at in range(_count(item, "oldest"), _count(item, "bundles")):
            self._call("delete_item", {"Key": _bundle_key(item, at)})

    def _put(self, item: Item, at: int, first: int, size: int, payloads: Sequence[bytes]) -> None:
        """Write a bundle that nobody is told of yet; one of a later start is not overwritten."""
        bundle = {
            **_bundle_key(item, at),
            "first": number(first),
            "series": item["series"],
            "created": item["created"],
            "size": number(size),
            "payloads": {"L": [{"B": payload} for payload in payloads]},
            "ttl": item["ttl"],
        }
        self._call(
            "put_item",
            {
                "Item": bundle,
                "ConditionExpression": IS_NO_LATER,
                "ExpressionAttributeNames": {"#created": "created", "#series": "series"},
                "ExpressionAttributeValues": {
                    ":created": item["created"],
                    ":series": item["series"],
                },
            },
        )

    def _count_in(self, item: Item, before: int, parts: int, held: int) -> None:
        """Tell readers of a bundle, if the reply is pending and the start is still its last."""
        names = ("parts", "bundles", "bytes", "emitter", "state", "handle")
        values = {
            ":parts": number(parts),
            ":bundles": number(before + 1),
            ":bytes": number(held),
            ":pending": {"S": ReplyState.PENDING.value},
            ":handle": item["handle"],
            ":emitter": {"S": new_id()},
        }
        is_next = "attribute_not_exists(#bundles)"
        if before:
            is_next = "#bundles = :before"
            values[":before"] = number(before)
        self._call(
            "update_item",
            {
                "Key": {"id": item["id"]},
                "UpdateExpression": "SET #parts = :parts, #bundles = :bundles, #bytes = :bytes, "
                "#emitter = :emitter",
                "ConditionExpression": f"(#state = :pending AND #handle = :handle AND {is_next}) "
                "OR #emitter = :emitter",
                "ExpressionAttributeNames": {f"#{name}": name for name in names},
                "ExpressionAttributeValues": values,
            },
        )

    def _bundle_with(self, item: Item, first: int) -> int:
        """Return the number of the bundle with a part, or of the oldest one, if it was dropped.

        Readers mostly want the latest, so it looks at the end first.
        """
        low, high, step = _count(item, "oldest"), _count(item, "bundles"), 1
        while high - low > 1:
            middle = max(high - step, low + 1)
            bundle = self._bundle(item, middle, "id, #first")
            if bundle is not None and _count(bundle, "first") > first:
                high, step = middle, step * 2
            else:
                # A part between this bundle and the one that was looked at before.
                low, step = middle, max((high - middle) // 2, 1)
        return low

    def _drop_oldest(self, item: Item, emitted: int, last: int, held: int) -> None:
        """Remove the oldest bundles while there are too many parts; the last bundle stays."""
        oldest = _count(item, "oldest")
        while oldest < last:
            following = self._bundle(item, oldest + 1, "id, #first") or {}
            if held <= MOST_PART_BYTES and emitted - _count(following, "first") < MOST_PARTS:
                break
            held -= _count(self._bundle(item, oldest, "id, #size") or {}, "size")
            self._call("delete_item", {"Key": _bundle_key(item, oldest)})
            oldest += 1
        with suppress(Refused):  # whoever emits next does it
            self._note_oldest(item, oldest, last + 1, held)

    def _note_oldest(self, item: Item, oldest: int, bundles: int, held: int) -> None:
        self._call(
            "update_item",
            {
                "Key": {"id": item["id"]},
                "UpdateExpression": "SET #oldest = :oldest, #bytes = :bytes",
                "ConditionExpression": "#bundles = :bundles",
                "ExpressionAttributeNames": {
                    f"#{name}": name for name in ("oldest", "bytes", "bundles")
                },
                "ExpressionAttributeValues": {
                    ":oldest": number(oldest),
                    ":bytes": number(max(held, 0)),
                    ":bundles": number(bundles),
                },
            },
        )

    def _bundle(self, item: Item, at: int, only: str | None = None) -> Item | None:
        request: dict[str, Any] = {"Key": _bundle_key(item, at), "ConsistentRead": True}
        if only is not None:
            request["ProjectionExpression"] = only
            names = [name[1:] for name in only.split(", ") if name.startswith("#")]
            request["ExpressionAttributeNames"] = {f"#{name}": name for name in names}
        found: Item | None = self._call("get_item", request).get("Item")
        return found


def key_of(id: str) -> Item:
    """Return the key of a reply's item."""
    return {"id": {"S": id}}


def number(value: float) -> dict[str, str]:
    """Return a number as DynamoDB takes it."""
    # Microseconds, written out: an exponent or binary dust is no use in a comparison.
    return {"N": f"{value:.6f}".rstrip("0").rstrip(".")}


def number_in(item: Item, name: str) -> float | None:
    """Return a number of an item, or None."""
    return float(item[name]["N"]) if name in item else None


def _count(item: Item, name: str) -> int:
    return int(number_in(item, name) or 0)


def _bundle_key(item: Item, at: int) -> Item:
    return key_of(f"{item['id']['S']}#{at}")
