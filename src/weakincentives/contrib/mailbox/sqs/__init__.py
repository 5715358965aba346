"""Mailboxes on AWS: SQS for messages, DynamoDB for replies."""

from .errors import BatchPartlySentError
from .mailbox import SQSMailbox, SQSMailboxFactory, SQSStats
from .replies import DynamoDBReplyStore

__all__ = [
    "BatchPartlySentError",
    "DynamoDBReplyStore",
    "SQSMailbox",
    "SQSMailboxFactory",
    "SQSStats",
]
