"""SQS and DynamoDB, as several emulators understand them.

``faults`` lists where an emulator is not like AWS; the tests named there are expected to fail, and
the day one of them passes the list is wrong.
"""

from typing import Any, ClassVar

import pytest

from testkit.cloud import Cloud
from weakincentives.contrib.mailbox.sqs.queue_names import check_queue_name
from weakincentives.ids import new_id

IN_PLACE = (
    "gives back to the front of a Standard queue, always: SQS has many servers and no order, "
    "so that other messages get their turn"
)


class Emulated:
    """Finds the emulator that a contract class runs on."""

    emulator: ClassVar[str] = "ministack"
    faults: ClassVar[dict[str, str]] = {}
    cloud: Cloud

    @pytest.fixture(autouse=True)
    def find_emulator(self, request: pytest.FixtureRequest) -> None:
        self.cloud = request.getfixturevalue(f"shared_{self.emulator}")
        if self.emulator == "moto" and "large_batch" in request.function.__name__:
            pytest.skip("moto walks over the whole queue at each step: minutes for thousands")
        fault = self.faults.get(request.function.__name__)
        if fault is not None:
            reason = f"{self.emulator} {fault}"
            strict = "race" not in fault
            request.applymarker(pytest.mark.xfail(reason=reason, strict=strict))


class Standard(Emulated):
    moment = 1
    faults: ClassVar = {"test_a_filter_that_nacks_makes_progress": IN_PLACE}

    def make_mailbox(self, name: str, **options: Any) -> Any:
        replies = self.cloud.reply_store("contract-replies")
        return self.cloud.mailbox(check_queue_name(name), reply_store=replies, **options)


class Fifo(Emulated):
    """Each message in a group of its own: the contract takes what is first while others work."""

    moment = 1
    # The typed face is the same as on Standard, where both are driven.
    faces = ("async",)
    faults: ClassVar = {
        "test_a_filter_that_nacks_makes_progress": (
            "takes the groups in order of sending: in SQS no order is promised among groups"
        )
    }

    def make_mailbox(self, name: str, **options: Any) -> Any:
        replies = self.cloud.reply_store("contract-replies")
        return self.cloud.mailbox(
            f"{check_queue_name(name)[:75]}.fifo",
            name=name,
            reply_store=replies,
            message_group_id=lambda body: new_id(),
            **options,
        )


HANDED_OUT_TWICE = "hands one message to two receivers, in a race"


class StandardOnMoto(Standard):
    emulator = "moto"
    faults: ClassVar = {**Standard.faults, "test_eight_threads": HANDED_OUT_TWICE}


class FifoOnMoto(Fifo):
    emulator = "moto"
    faults: ClassVar = {
        **Fifo.faults,
        "test_eight_threads": HANDED_OUT_TWICE,
        "test_a_repeated_id_is_the_same_message_after_the_acknowledgement": (
            "forgets an id with its message: SQS knows it for five minutes"
        ),
        **dict.fromkeys(
            (
                "test_a_nack_wakes_a_long_poll",
                "test_receives_that_end_with_their_event_loop_keep_nothing",
            ),
            "keeps for a whole poll which groups were in flight when it began: a race",
        ),
    }


class StandardOnLocalStack(Standard):
    emulator = "localstack"


class FifoOnLocalStack(Fifo):
    emulator = "localstack"
    faults: ClassVar = {}


class StandardOnFauxqs(Standard):
    emulator = "fauxqs"
    faults: ClassVar = {}


class FifoOnFauxqs(Fifo):
    emulator = "fauxqs"
    faults: ClassVar = {}


class DynamoDB(Emulated):
    def make_reply_store(self) -> Any:
        return self.cloud.reply_store(f"contract-{new_id()}")


class DynamoDBOnMoto(DynamoDB):
    emulator = "moto"
    faults: ClassVar = dict.fromkeys(
        (
            "test_one_of_many_consumers_gets_the_value",
            "test_one_of_many_settlements_counts",
            "test_one_of_many_creations_counts",
        ),
        "checks a condition and writes without a lock: two conditional writes may both win a race",
    )


class DynamoDBOnDynalite(DynamoDB):
    emulator = "fauxqs"
