"""Count what AWS charges for, and write the table of docs/aws.md.

The calls are counted on an emulator; what they cost is computed from the list prices below.
"""

import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from testkit.cloud import Cloud
from testkit.servers.aws import MINISTACK, running
from weakincentives.contrib.mailbox.sqs import SQSMailbox
from weakincentives.runtime import Worker
from weakincentives.runtime.mailbox import ReplyTimeoutError

PAGE = Path(__file__).parents[1] / "docs" / "aws.md"
PLACE = re.compile(r"(?<=<!-- costs -->\n).*?(?=<!-- end of costs -->)", re.DOTALL)

PRICES_OF = "November 2024, us-east-1, on demand, without the free tier"
REQUESTS, READS, WRITES = 0.40, 0.125, 0.625
"""Dollars for a million requests to a Standard queue, read units and write units."""

HUNDRED = 100


class Cost(NamedTuple):
    """What one of something takes: requests to SQS, units of DynamoDB."""

    requests: float = 0.0
    reads: float = 0.0
    writes: float = 0.0

    @property
    def of_a_million(self) -> float:
        return self.requests * REQUESTS + self.reads * READS + self.writes * WRITES


class Meter:
    """Counts what the clients of a cloud are charged for; items here are smaller than a unit."""

    def __init__(self, cloud: Cloud) -> None:
        self._used: Counter[str] = Counter()
        cloud.sqs.meta.events.register("before-call.sqs", self._request)
        cloud.dynamodb.meta.events.register("provide-client-params.dynamodb", self._item)

    def _request(self, **_: Any) -> None:
        self._used["requests"] += 1

    def _item(self, model: Any, params: dict[str, Any], **_: Any) -> None:
        if model.name == "GetItem":
            self._used["half reads"] += 2 if params.get("ConsistentRead") else 1
        elif model.name in ("PutItem", "UpdateItem", "DeleteItem"):
            self._used["writes"] += 1

    def cost(self, count: int = 1) -> Cost:
        """Return what one of ``count`` has cost since the last time."""
        used, self._used = self._used, Counter()
        return Cost(
            used["requests"] / count, used["half reads"] / 2 / count, used["writes"] / count
        )


def mailbox_in_use(cloud: Cloud, **options: Any) -> SQSMailbox[Any, Any]:
    """Return a mailbox whose last poll has brought a message."""
    box = cloud.mailbox(**options)
    box.send(0)
    box.receive(wait_time_seconds=20)[0].acknowledge()
    return box


def one_at_a_time(cloud: Cloud, meter: Meter) -> Cost:
    box = mailbox_in_use(cloud)
    meter.cost()
    for n in range(HUNDRED):
        box.send(n)
        box.receive(wait_time_seconds=20)[0].acknowledge()
    return meter.cost(HUNDRED)


def ten_at_a_time(cloud: Cloud, meter: Meter) -> Cost:
    box, left = mailbox_in_use(cloud), HUNDRED
    meter.cost()
    box.send_batch(list(range(HUNDRED)))
    while left:
        messages = box.receive(max_messages=10, wait_time_seconds=20)
        left -= sum(box.acknowledge_batch(messages))
    return meter.cost(HUNDRED)


def after_a_pause(cloud: Cloud, meter: Meter) -> Cost:
    """Send to a consumer whose queue was empty: its lease begins short, and is made longer."""
    box = cloud.mailbox()
    meter.cost()
    box.send(1)
    box.receive(wait_time_seconds=20)[0].acknowledge()
    return meter.cost()


def request_with_reply(cloud: Cloud, meter: Meter, seconds: float) -> Cost:
    """Have a worker answer after so many seconds."""
    box = mailbox_in_use(cloud, reply_store=cloud.reply_store())
    meter.cost()
    request = box.send_expecting_reply(1)
    (message,) = box.receive(wait_time_seconds=20)
    threading.Timer(seconds, message.reply, ["done"]).start()
    assert request.wait(timeout=120) == "done"
    while not message.is_finalized:
        time.sleep(0.01)
    return meter.cost()


def wait_in_vain(cloud: Cloud, meter: Meter) -> Cost:
    request = cloud.mailbox(reply_store=cloud.reply_store()).send_expecting_reply(1)
    meter.cost()
    try:
        request.wait(timeout=30)
    except ReplyTimeoutError:
        return meter.cost()
    raise AssertionError("nobody has answered")


def idle_minute(cloud: Cloud, meter: Meter) -> Cost:
    worker = Worker(cloud.mailbox(), print)
    meter.cost()
    running = threading.Thread(target=worker.run)
    running.start()
    running.join(60)
    cost = meter.cost()
    worker.shutdown()
    running.join()
    return cost


SCENES: dict[str, Callable[[Cloud, Meter], Cost]] = {
    "message: send, receive, acknowledge": one_at_a_time,
    "the same, in tens": ten_at_a_time,
    "message after a pause of 20 s": after_a_pause,
    "request with reply, job of 0.5 s": lambda cloud, meter: request_with_reply(cloud, meter, 0.5),
    "request with reply, job of 10 s": lambda cloud, meter: request_with_reply(cloud, meter, 10),
    "caller who waits 30 s in vain": wait_in_vain,
    "first minute of an idle worker": idle_minute,
}


def lines(costs: dict[str, Cost]) -> Iterator[str]:
    """Write the table."""
    yield "| one … | requests to SQS | read units | write units | a million cost |"
    yield "|---|---|---|---|---|"
    for what, cost in costs.items():
        yield (
            f"| {what} | {cost.requests:g} | {cost.reads:g} | {cost.writes:g} "
            f"| ${cost.of_a_million:.2f} |"
        )
    yield ""
    yield "The calls were counted on an emulator by `python -m benchmarks.aws_costs`. The prices"
    yield "are an assumption to be checked, because AWS changes them: its public price lists of"
    yield f"{PRICES_OF}:"
    yield f"${REQUESTS:.2f} for a million requests to a Standard queue (of up to 64 KB each),"
    yield f"${READS:g} for a million read units, ${WRITES:g} for a million write units."


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch, running(MINISTACK, Path(scratch)) as endpoint:
        cloud = Cloud(endpoint)
        meter = Meter(cloud)
        costs = {what: scene(cloud, meter) for what, scene in SCENES.items()}
    table = "\n".join(line.rstrip() for line in lines(costs)) + "\n"
    text, times = PLACE.subn(lambda _: table, PAGE.read_text(encoding="utf-8"))
    assert times == 1, f"{PAGE} has no place for the table"
    PAGE.write_text(text, encoding="utf-8")
    print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
