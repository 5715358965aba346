"""Replies that wait in a DynamoDB table.

An item has ``id`` (the key), ``state``, ``created``, ``expires`` and, once resolved, ``payload``,
``resolved`` and ``lingers`` (readable at least until then); times in seconds since the epoch.
``owner`` is the queue and the message that it belongs to, if anybody has said so.
``by`` names the write that made it so, so that a write that is repeated after a lost answer finds
itself done. ``ttl`` is for DynamoDB's own sweeping, which comes days late and decides nothing.
``waits`` is how many seconds the caller wants to wait. If it wants the reply kept, there are
``keep`` (for how many seconds), ``keeps`` (the same, or a minute if that is longer) and ``kept``
(until when at least). The last start is ``handle``, ``worker``, ``deliveries``, ``started`` and
``series``.
What is kept of the parts is described in `part_bundles`.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Generic, TypeVar

from botocore.exceptions import ClientError

from weakincentives.clock import Clock, SystemClock
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.errors import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxError,
    PayloadTooLargeError,
)
from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.reply_table import (
    LINGER,
    JobStart,
    PartRow,
    ReplyListener,
    ReplyRow,
    ReplyState,
)

from .connection import prepare
from .errors import Place, code_of, translated
from .part_bundles import Item, PartBundles, Refused, key_of, number, number_in
from .reply_polls import ReplyPolls

__all__ = ["DynamoDBReplyStore", "DynamoDBReplyTable"]

T = TypeVar("T")

MOST_TRIES = 10
"""How often a part is written again because its reply has changed meanwhile."""
LARGEST_ITEM = 400 * 1024
REST_OF_ITEM = 1024
"""Room for everything in an item but the value."""

CONSUMED = "consumed"
"""The state of an item that was read and is about to be deleted."""

OF_ONE_SENDING = (
    *("payload", "resolved", "lingers", "keep", "keeps", "kept"),
    *("handle", "worker", "deliveries", "started"),
)
"""What a replay begins without."""

IS_PENDING = "#state = :pending AND expires > :now"
IS_RESOLVED = "#state = :resolved AND (expires > :now OR lingers > :now)"
IS_OWNED = "(attribute_not_exists(#owner) OR #owner = :owner)"
IS_OVER = (
    "expires <= :now AND (attribute_not_exists(lingers) OR lingers <= :now) "
    "AND (attribute_not_exists(kept) OR kept <= :now)"
)
IS_SETTLED_FOR_GOOD = "#state IN (:resolved, :cancelled) AND (expires > :now OR lingers > :now)"
IS_LATEST = (
    "(attribute_not_exists(#deliveries) OR #deliveries <= :deliveries) "
    "AND (attribute_not_exists(#handle) OR #handle <> :handle)"
)


class DynamoDBReplyTable:
    """One item for each reply; every write is conditional.

    DynamoDB shows no clock, so expiry is judged by the clock of whoever asks.
    """

    steps: ClassVar[Steps] = "blocking"
    keeps_objects: ClassVar[bool] = False

    def __init__(self, table_name: str, client: Any, clock: Clock | None = None) -> None:
        self._table = table_name
        self.backend_key = self._client = client
        prepare(client)
        self.clock: Clock = clock if clock is not None else SystemClock()
        self._place = Place("table", table_name, client.meta.region_name)
        self._bundles = PartBundles(self._call)

    async def create(
        self, id: str, ttl: float, owner: str | None = None, keep: float = 0.0
    ) -> bool:
        """Add a pending reply; False if the id is taken."""
        opened = _opened(self.clock.time(), ttl, owner, keep)
        return self._write(
            "put_item",
            {
                "Item": {"id": {"S": id}, **opened},
                "ConditionExpression": "attribute_not_exists(id) OR #by = :by",
                "ExpressionAttributeNames": {"#by": "by"},
                "ExpressionAttributeValues": {":by": opened["by"]},
            },
        )

    async def reopen(self, id: str, ttl: float, owner: str, keep: float = 0.0) -> bool:
        """Make a reply pending again, for a message that is replayed."""
        now = self.clock.time()
        opened = _opened(now, ttl, owner, keep)
        removed = [name for name in OF_ONE_SENDING if name not in opened]
        return self._write(
            "update_item",
            {
                "Key": key_of(id),
                "UpdateExpression": "SET "
                + ", ".join(f"#{name} = :{name}" for name in opened)
                + " REMOVE "
                + ", ".join(f"#{name}" for name in removed),
                "ConditionExpression": f"attribute_not_exists(id) OR NOT ({IS_SETTLED_FOR_GOOD})",
                "ExpressionAttributeNames": {f"#{name}": name for name in (*opened, *removed)},
                "ExpressionAttributeValues": {
                    **{f":{name}": value for name, value in opened.items()},
                    ":resolved": {"S": ReplyState.RESOLVED.value},
                    ":cancelled": {"S": ReplyState.CANCELLED.value},
                    ":now": number(now),
                },
            },
        )

    async def start(self, id: str, owner: str, start: JobStart) -> ReplyRow | None:
        """Record that a worker has received the message, and return the row."""
        now = self.clock.time()
        names = ("state", "owner", "handle", "worker", "deliveries", "started", "series")
        request = {
            "Key": key_of(id),
            "UpdateExpression": "SET #handle = :handle, #worker = :worker, "
            "#deliveries = :deliveries, #started = :now, "
            "#series = if_not_exists(#series, :zero) + :one",
            "ConditionExpression": f"{IS_PENDING} AND {IS_OWNED} AND {IS_LATEST}",
            "ExpressionAttributeNames": {f"#{name}": name for name in names},
            "ExpressionAttributeValues": {
                ":pending": {"S": ReplyState.PENDING.value},
                ":now": number(now),
                ":owner": {"S": owner},
                ":handle": {"S": start.handle},
                ":worker": {"S": start.worker},
                ":deliveries": number(start.deliveries),
                ":zero": number(0),
                ":one": number(1),
            },
            "ReturnValues": "ALL_NEW",
        }
        try:
            return _row(self._call("update_item", request)["Attributes"], now)
        except Refused:
            return await self.get(id)

    async def prolong(self, id: str, seconds: float, owner: str) -> bool:
        """Have a pending reply expire later."""
        return self._change(
            id,
            "SET kept = if_not_exists(kept, expires) + :seconds, expires = expires + :seconds, "
            "#ttl = #ttl + :whole",
            {":seconds": number(seconds), ":whole": number(math.ceil(seconds))},
            self.clock.time(),
            owner,
            {"#ttl": "ttl"},
        )

    async def emit(self, id: str, owner: str, handle: str, payloads: Sequence[bytes]) -> bool:
        """Add parts; False if the reply is not pending, or this is not its last start."""
        return all(
            self._emit(id, owner, handle, bundle) for bundle in self._bundles.bundled(payloads)
        )

    async def parts(self, id: str, first: int, limit: int) -> Sequence[PartRow]:
        """Return the parts from this index on, a mebibyte of them or one bundle."""
        item = self._item(id)
        return () if item is None else self._bundles.read(item, first, limit)

    async def resolve(
        self, id: str, payload: bytes, owner: str | None = None, *, failed: bool = False
    ) -> bool:
        """Settle the reply if it is pending, and this owner's."""
        if len(payload) > LARGEST_ITEM - REST_OF_ITEM:
            raise PayloadTooLargeError(
                f"{self._place}: the reply has {len(payload)} bytes, DynamoDB takes "
                f"{LARGEST_ITEM - REST_OF_ITEM}; reply with a reference to it instead"
            )
        now = self.clock.time()
        return self._change(
            id,
            "SET #state = :state, payload = :payload, resolved = :now, "
            "lingers = :now + if_not_exists(keeps, :linger)",
            {
                ":state": {"S": (ReplyState.FAILED if failed else ReplyState.RESOLVED).value},
                ":payload": {"B": payload},
                ":linger": number(LINGER),
            },
            now,
            owner,
        )

    async def cancel(self, id: str) -> bool:
        """Close the reply if it is pending."""
        return self._change(
            id,
            "SET #state = :cancelled, resolved = :now, "
            "lingers = :now + if_not_exists(keeps, :zero)",
            {":cancelled": {"S": ReplyState.CANCELLED.value}, ":zero": number(0)},
            self.clock.time(),
        )

    async def get(self, id: str) -> ReplyRow | None:
        """Look at a reply."""
        return await self.read(id, consistent=True)

    async def read(self, id: str, *, consistent: bool) -> ReplyRow | None:
        """Look at a reply; if that need not be consistent, it costs half and may be late."""
        item = self._item(id, consistent=consistent)
        return None if item is None else _row(item, self.clock.time())

    async def consume(self, id: str) -> ReplyRow | None:
        """Return and remove a resolved reply, to one caller only."""
        now = self.clock.time()
        request = {
            "Key": key_of(id),
            # Marked before it is deleted: a delete that is repeated finds nothing to return.
            "UpdateExpression": "SET #state = :consumed, #by = :by",
            "ConditionExpression": f"({IS_RESOLVED}) OR #by = :by",
            "ExpressionAttributeNames": {"#state": "state", "#by": "by"},
            "ExpressionAttributeValues": {
                ":resolved": {"S": ReplyState.RESOLVED.value},
                ":consumed": {"S": CONSUMED},
                ":now": number(now),
                ":by": {"S": new_id()},
            },
            "ReturnValues": "ALL_NEW",
        }
        try:
            item = self._call("update_item", request)["Attributes"]
        except Refused:
            return None
        with suppress(MailboxError):  # it has been read, and expires by itself
            self._delete({"Key": key_of(id)})
        return _row({**item, "state": {"S": ReplyState.RESOLVED.value}}, now)

    async def delete(self, id: str) -> bool:
        """Remove the reply; False if there was none."""
        return self._delete({"Key": key_of(id)})

    async def forget(self, id: str) -> None:
        """Remove a reply that was read; its parts are left to the table's TTL."""
        self._call("delete_item", {"Key": key_of(id)})

    async def scan_expired(self, limit: int) -> list[str]:
        """Return ids of replies whose time is over; it reads the table, so leave it to TTL."""
        request: dict[str, Any] = {
            "ConsistentRead": True,
            "ProjectionExpression": "id",
            "FilterExpression": IS_OVER,
            "ExpressionAttributeValues": {":now": number(self.clock.time())},
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
        return ReplyPolls(self, id, in_loop=in_loop)

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
            # A second between two looks: the waiter's own pause is twenty.
            self._client.get_waiter("table_exists").wait(
                TableName=self._table, WaiterConfig={"Delay": 1, "MaxAttempts": 300}
            )
            described = self._client.describe_time_to_live(TableName=self._table)
            if described["TimeToLiveDescription"].get("TimeToLiveStatus") in (None, "DISABLED"):
                self._client.update_time_to_live(
                    TableName=self._table,
                    TimeToLiveSpecification={"Enabled": True, "AttributeName": "ttl"},
                )

    def _change(
        self,
        id: str,
        update: str,
        values: Item,
        now: float,
        owner: str | None = None,
        more_names: Mapping[str, str] | None = None,
    ) -> bool:
        """Change a reply that is pending, and this owner's."""
        condition, names = IS_PENDING, {"#state": "state", "#by": "by", **(more_names or {})}
        if owner is not None:
            condition = f"{IS_PENDING} AND {IS_OWNED}"
            names["#owner"] = "owner"
            values = {**values, ":owner": {"S": owner}}
        return self._write(
            "update_item",
            {
                "Key": key_of(id),
                "UpdateExpression": f"{update}, #by = :by",
                "ConditionExpression": f"({condition}) OR #by = :by",
                "ExpressionAttributeNames": names,
                "ExpressionAttributeValues": {
                    ":pending": {"S": ReplyState.PENDING.value},
                    ":now": number(now),
                    ":by": {"S": new_id()},
                    **values,
                },
            },
        )

    def _delete_if_over(self, id: str) -> bool:
        over = {
            "ConditionExpression": IS_OVER,
            "ExpressionAttributeValues": {":now": number(self.clock.time())},
        }
        try:
            return self._delete({"Key": key_of(id), **over})
        except Refused:
            return False

    def _delete(self, request: dict[str, Any]) -> bool:
        item = self._call("delete_item", {**request, "ReturnValues": "ALL_OLD"}).get("Attributes")
        if item is None:
            return False
        self._bundles.remove(item)
        return bool(item["state"]["S"] != CONSUMED)

    def _emit(self, id: str, owner: str, handle: str, payloads: Sequence[bytes]) -> bool:
        for _ in range(MOST_TRIES):
            item = self._item(id)
            row = None if item is None else _row(item, self.clock.time())
            if item is None or row is None or row.start is None:
                return False
            if row.start.handle != handle or not row.is_awaited_from(owner):
                return False
            if self._bundles.add(item, payloads):
                return True
        raise MailboxConnectionError(f"{self._place}: a part of reply {id} could not be written")

    def _item(self, id: str, *, consistent: bool = True) -> Item | None:
        request = {"Key": key_of(id), "ConsistentRead": consistent}
        found: Item | None = self._call("get_item", request).get("Item")
        return None if found is None or found["state"]["S"] == CONSUMED else found

    def _write(self, method: str, request: dict[str, Any]) -> bool:
        try:
            self._call(method, request)
        except Refused:
            return False
        return True

    def _call(self, method: str, request: dict[str, Any]) -> dict[str, Any]:
        with translated(self._place):
            try:
                return getattr(self._client, method)(TableName=self._table, **request)  # type: ignore[no-any-return]
            except ClientError as error:
                if code_of(error) == "ConditionalCheckFailedException":
                    raise Refused from error
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


def _opened(now: float, ttl: float, owner: str | None, keep: float) -> Item:
    """Return the attributes of a pending reply."""
    expires = now + ttl
    item = {
        "state": {"S": ReplyState.PENDING.value},
        "created": number(now),
        "expires": number(expires),
        "waits": number(ttl),
        "ttl": number(math.ceil(expires + keep + LINGER)),
        "by": {"S": new_id()},
    }
    if owner is not None:
        item["owner"] = {"S": owner}
    if keep:
        item |= {"keep": number(keep), "keeps": number(max(keep, LINGER))}
        item["kept"] = number(expires + keep)
    return item


def _row(item: Item, now: float) -> ReplyRow:
    expires = max(number_in(item, "expires") or 0.0, number_in(item, "lingers") or 0.0)
    payload = item.get("payload")
    return ReplyRow(
        item["id"]["S"],
        ReplyState.EXPIRED if now >= expires else ReplyState(item["state"]["S"]),
        None if payload is None else payload["B"],
        number_in(item, "created") or 0.0,
        expires,
        number_in(item, "resolved"),
        item["owner"]["S"] if "owner" in item else None,
        number_in(item, "waits") or 0.0,
        number_in(item, "keep") or 0.0,
        _start(item),
        int(number_in(item, "parts") or 0),
    )


def _start(item: Item) -> JobStart | None:
    if "handle" not in item:
        return None
    return JobStart(
        item["handle"]["S"],
        item["worker"]["S"],
        int(number_in(item, "deliveries") or 0),
        number_in(item, "started") or 0.0,
        int(number_in(item, "series") or 0),
    )
