"""SQS: what a Standard queue may do, and the others may not."""

from typing import Any

from chaos import roles
from chaos.checkers import deliveries
from chaos.stage import QUEUE, Stage, scenario
from testkit.waiting import eventually

LEASE = 2.0


@scenario("sqs", full=50, short=3)
def doubled_deliveries(stage: Stage):
    """a message delivered to a second worker while the first is at it: one reply, nothing lost"""
    box = stage.mailbox()
    crew = [stage.child(roles.serve, LEASE) for _ in range(2)]
    replies = []
    for trial in range(stage.trials):
        replies.append(box.send_expecting_reply({"work": 0.3, "trial": trial}))
        eventually(lambda trial=trial: len(_delivered(stage)) > trial, 120, "a delivery")
        (first, *_) = _delivered(stage)[-1]
        _show_again(stage, first.op.handle)
        eventually(lambda: len(_delivered(stage)[-1]) > 1, 120, "another delivery")
    for trial, reply in enumerate(replies):
        value = reply.wait(timeout=20)
        if value["trial"] != trial or reply.wait(timeout=1) != value:
            stage.violations.append(f"the reply to {trial} is {value}")
    eventually(lambda: box.approximate_count() == 0, 120, "an empty queue")
    stage.figures["deliveries"] = sum(map(len, _delivered(stage)))
    for child in crew:
        child.kill()
    return stage.verdict(doubled=True)


def _delivered(stage: Stage) -> list[list[Any]]:
    """Return the deliveries of each message, in the order of the first ones."""
    return list(deliveries(stage.history()).values())


def _show_again(stage: Stage, handle: str) -> None:
    """Let SQS forget a lease, as a server that was not told of it would."""
    client = stage.connection._sqs
    where = client.get_queue_url(QueueName=QUEUE)["QueueUrl"]
    client.change_message_visibility(QueueUrl=where, ReceiptHandle=handle, VisibilityTimeout=0)
