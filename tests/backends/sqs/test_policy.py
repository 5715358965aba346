"""The documented policies are what is needed: no call beyond them, and nothing in them unused.

Every client of these tests refuses calls that the policies leave out (see `Ledger`), so that the
whole suite proves the first half; here is the second.
"""

from testkit.cloud import Cloud, Ledger, documented_policies
from weakincentives.contrib.mailbox import SQSMailboxFactory
from weakincentives.contrib.mailbox.sqs.backend import SQSBackend
from weakincentives.contrib.mailbox.sqs.new_queues import NewQueues
from weakincentives.ids import new_id


def test_a_worker_uses_all_that_its_policy_allows(ministack: Cloud) -> None:
    replies = ministack.reply_store()
    name = f"q-{new_id()}"
    ministack.queue(name)
    used = Ledger()
    backend = SQSBackend(used.watch(ministack.client("sqs")), replies)
    used.watch(ministack.dynamodb)
    requests = backend.mailbox(name)
    answer = requests.send_expecting_reply("x" * 2000)
    requests.send("again")
    messages = requests.receive(max_messages=10, wait_time_seconds=5)
    for message in messages:
        message.extend_visibility(60)
        if message.expects_reply():
            message.reply("done")
        else:
            message.nack()
    assert answer.wait(timeout=120) == "done"
    assert requests.send_expecting_reply(1).cancel() is True
    worker, _ = documented_policies()
    assert used.actions == worker["Messages"] | worker["Replies"]


def test_encrypted_queues_can_be_sent_to_and_received_from() -> None:
    # SQS decrypts for who receives, and also needs both to encrypt for who sends.
    worker, _ = documented_policies()
    assert worker["Encryption"] == {"kms:Decrypt", "kms:GenerateDataKey"}


def test_an_operator_uses_all_that_the_other_policy_allows(ministack: Cloud) -> None:
    used = Ledger()
    used.watch(ministack.dynamodb)
    replies = ministack.reply_store()
    backend = SQSBackend(used.watch(ministack.client("sqs")), replies, new_queues=NewQueues())
    name = f"q-{new_id()}"
    mailbox = backend.mailbox(name)
    assert name in backend.queues()
    mailbox.purge()
    replies.cleanup_expired()
    SQSMailboxFactory(ministack.sqs).create(name)
    assert backend.delete(name) is True
    worker, operator = documented_policies()
    assert used.actions - worker["Messages"] - worker["Replies"] == (
        operator["Queues"] | operator["Table"]
    )
