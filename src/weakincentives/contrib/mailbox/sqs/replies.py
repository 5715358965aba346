"""Replies that wait in a DynamoDB table.

An item has ``id`` (the key), ``state``, ``created``, ``expires`` and, once resolved, ``payload``,
``resolved`` and ``lingers`` (readable at least until then); times in seconds since the epoch.
``owner`` is the queue and the message that it belongs to, if anybody has said so.
``by`` names the write that made it so, so that a write that is repeated after a lost answer finds
itself done. ``ttl`` is for DynamoDB's own sweeping, which comes days late and decides nothing.
"""

import math
from decimal import Decimal
from typing import Any, ClassVar, Generic, TypeVar

from botocore.exceptions import ClientError

from weakincentives.clock import Clock, SystemClock
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.errors import InvalidParameterError, PayloadTooLargeError
from weakincentives.runtime.mailbox.replies.foreign import PollingReplyListener
from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.reply_table import (
    LINGER,
    ReplyListener,
    ReplyRow,
    ReplyState,
)

from .errors import Place, code_of, translated

__all__ = ["DynamoDBReplyStore", "DynamoDBReplyTable"]

T = TypeVar("T")

LARGEST_ITEM = 400 * 1024
REST_OF_ITEM = 1024
"""Room for everything in an item but the value."""

Item = dict[str, dict[str, Any]]

IS_PENDING = "#state = :pending AND expires > :now"
IS_RESOLVED = "#state = :resolved AND (expires > :now OR lingers > :now)"
IS_OWNED = "(attribute_not_exists(#owner) OR #owner = :owner)"
IS_OVER = "expires <= :now AND (attribute_not_exists(lingers) OR lingers <= :now)"


class DynamoDBReplyTable:
    """One item for each reply; every write is conditional, every read consistent.

    DynamoDB shows no clock, so expiry is judged by the clock of whoever asks.
    """

    steps: ClassVar[Steps] = "blocking"
    keeps_objects: ClassVar[bool] = False

    def __init__(self, table_name: str, client: Any, clock: Clock | None = None) -> None:
        self._table = table_name
        self.backend_key = self._client = client
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._place = Place("table", table_name, client.meta.region_name)

    async def create(self, id: str, ttl: float, owner: str | None = None) -> bool:
        """Add a pending reply; False if the id is taken."""
        now, by = self._clock.time(), {"S": new_id()}
        item = {
            "id": {"S": id},
            "state": {"S": ReplyState.PENDING.value},
            "created": _number(now),
            "expires": _number(now + ttl),
            "ttl": _number(math.ceil(now + ttl + LINGER)),
            "by": by,
            **({} if owner is None else {"owner": {"S": owner}}),
        }
        return self._write(
            "put_item",
            {
                "Item": item,
                "ConditionExpression": "attribute_not_exists(id) OR #by = :by",
                "ExpressionAttributeNames": {"#by": "by"},
                "ExpressionAttributeValues": {":by": by},
            },
        )

    async def resolve(self, id: str, payload: bytes, owner: str | None = None) -> bool:
        """Store the value if the reply is pending, and this owner's."""
        if len(payload) > LARGEST_ITEM - REST_OF_ITEM:
            raise PayloadTooLargeError(
                f"{self._place}: the reply has {len(payload)} bytes, DynamoDB takes "
                f"{LARGEST_ITEM - REST_OF_ITEM}; reply with a reference to it instead"
            )
        now = self._clock.time()
        return self._change(
            id,
            "SET #state = :resolved, payload = :payload, resolved = :now, lingers = :lingers",
            {
                ":resolved": {"S": ReplyState.RESOLVED.value},
                ":payload": {"B": payload},
                ":lingers": _number(now + LINGER),
            },
            now,
            owner,
        )

    async def cancel(self, id: str) -> bool:
        """Close the reply if it is pending."""
        cancelled = {":cancelled": {"S": ReplyState.CANCELLED.value}}
        return self._change(id, "SET #state = :cancelled", cancelled, self._clock.time())

    async def get(self, id: str) -> ReplyRow | None:
        """Look at a reply."""
        item = self._call("get_item", {"Key": _key(id), "ConsistentRead": True}).get("Item")
        return None if item is None else _row(item, self._clock.time())

    async def consume(self, id: str) -> ReplyRow | None:
        """Return and remove a resolved reply, to one caller only."""
        now = self._clock.time()
        request = {
            "Key": _key(id),
            "ConditionExpression": IS_RESOLVED,
            "ExpressionAttributeNames": {"#state": "state"},
            "ExpressionAttributeValues": {
                ":resolved": {"S": ReplyState.RESOLVED.value},
                ":now": _number(now),
            },
            "ReturnValues": "ALL_OLD",
        }
        try:
            item = self._call("delete_item", request)["Attributes"]
        except _Refused:
            return None
        return _row(item, now)

    async def delete(self, id: str) -> bool:
        """Remove the reply; False if there was none."""
        return "Attributes" in self._call(
            "delete_item", {"Key": _key(id), "ReturnValues": "ALL_OLD"}
        )

    forget = delete

    async def scan_expired(self, limit: int) -> list[str]:
        """Return ids of replies whose time is over; it reads the table, so leave it to TTL."""
        request: dict[str, Any] = {
            "ConsistentRead": True,
            "ProjectionExpression": "id",
            "FilterExpression": IS_OVER,
            "ExpressionAttributeValues": {":now": _number(self._clock.time())},
        }
        ids: list[str] = []
        while len(ids) < limit:
            page = self._call("scan", request)
            ids += [item["id"]["S"] for item in page.get("Items", [])]
            if "LastEvaluatedKey" not in page:
                break
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]
        return ids[:limit]

    async def cleanup_expired(self, limit: int) -> int:
        """Remove replies whose time is over and return how many."""
        return sum(self._delete_if_over(id) for id in await self.scan_expired(limit))

    def listen(self, id: str, *, in_loop: bool = False) -> ReplyListener:
        """Return a listener that asks again and again."""
        return PollingReplyListener(self, id, in_loop=in_loop)

    def create_table(self) -> None:
        """Create the table, paid by request, with its TTL; one that exists is left as it is."""
        with translated(self._place):
            try:
                self._client.create_table(
                    TableName=self._table,
                    AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
                    KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
                    BillingMode="PAY_PER_REQUEST",
                )
            except ClientError as error:
                if code_of(error) != "ResourceInUseException":
                    raise
            self._client.get_waiter("table_exists").wait(TableName=self._table)
            described = self._client.describe_time_to_live(TableName=self._table)
            if described["TimeToLiveDescription"].get("TimeToLiveStatus") in (None, "DISABLED"):
                self._client.update_time_to_live(
                    TableName=self._table,
                    TimeToLiveSpecification={"Enabled": True, "AttributeName": "ttl"},
                )

    def _change(
        self, id: str, update: str, values: Item, now: float, owner: str | None = None
    ) -> bool:
        """Change a reply that is pending, and this owner's."""
        condition, names = IS_PENDING, {"#state": "state", "#by": "by"}
        if owner is not None:
            condition = f"{IS_PENDING} AND {IS_OWNED}"
            names["#owner"] = "owner"
            values = {**values, ":owner": {"S": owner}}
        return self._write(
            "update_item",
            {
                "Key": _key(id),
                "UpdateExpression": f"{update}, #by = :by",
                "ConditionExpression": f"({condition}) OR #by = :by",
                "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": {
                    ":pending": {"S": ReplyState.PENDING.value},
                    ":now": _number(now),
                    ":by": {"S": new_id()},
                    **values,
                },
            },
        )

    def _delete_if_over(self, id: str) -> bool:
        return self._write(
            "delete_item",
            {
                "Key": _key(id),
                "ConditionExpression": IS_OVER,
                "ExpressionAttributeValues": {":now": _number(self._clock.time())},
            },
        )

    def _write(self, method: str, request: dict[str, Any]) -> bool:
        try:
            self._call(method, request)
        except _Refused:
            return False
        return True

    def _call(self, method: str, request: dict[str, Any]) -> dict[str, Any]:
        with translated(self._place):
            try:
                return getattr(self._client, method)(TableName=self._table, **request)  # type: ignore[no-any-return]
            except ClientError as error:
                if code_of(error) == "ConditionalCheckFailedException":
                    raise _Refused from error
                raise


class DynamoDBReplyStore(StoredReplies[T], Generic[T]):
    """A `ReplyStore` in a DynamoDB table; `create_table` makes one that fits."""

    def __init__(self, table_name: str, client: Any, *, clock: Clock | None = None) -> None:
        if not isinstance(table_name, str) or not table_name:
            raise InvalidParameterError(f"table_name must be a name, not {table_name!r:.100}")
        self._dynamodb = DynamoDBReplyTable(table_name, client, clock)
        super().__init__(self._dynamodb)

    def create_table(self) -> None:
        """Create the table, paid by request, with its TTL; one that exists is left as it is."""
        self._dynamodb.create_table()


class _Refused(Exception):
    """A condition did not hold."""


def _key(id: str) -> Item:
    return {"id": {"S": id}}


def _number(value: float) -> dict[str, str]:
    # Microseconds, written out: an exponent or binary dust is no use in a comparison.
    return {"N": format(Decimal(value).quantize(Decimal("0.000001")).normalize(), "f")}


def _row(item: Item, now: float) -> ReplyRow:
    expires = max(_seconds(item, "expires") or 0.0, _seconds(item, "lingers") or 0.0)
    payload = item.get("payload")
    return ReplyRow(
        item["id"]["S"],
        ReplyState.EXPIRED if now >= expires else ReplyState(item["state"]["S"]),
        None if payload is None else payload["B"],
        _seconds(item, "created") or 0.0,
        expires,
        _seconds(item, "resolved"),
        item["owner"]["S"] if "owner" in item else None,
    )


def _seconds(item: Item, name: str) -> float | None:
    return float(item[name]["N"]) if name in item else None
