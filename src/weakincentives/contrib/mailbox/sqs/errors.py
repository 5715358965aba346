"""Translates errors of AWS into mailbox errors: one clear line, without secrets."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from botocore import exceptions as boto

from weakincentives.runtime.mailbox.errors import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxError,
    MailboxFullError,
    MailboxResolutionError,
)

__all__ = [
    "LEASE_ENDED",
    "BatchPartlySentError",
    "Place",
    "code_of",
    "plain_code",
    "translate",
    "translated",
]

MISSING = {"NonExistentQueue", "QueueDoesNotExist", "ResourceNotFoundException"}
DENIED = {"AccessDenied", "AccessDeniedException", "KmsAccessDenied", "KMS.AccessDeniedException"}
BAD_CREDENTIALS = {
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSecurity",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}
LEASE_ENDED = {
    "InvalidParameterValue",
    "MessageNotInflight",
    "ReceiptHandleIsInvalid",
}
"""How SQS refuses a handle; an entry that fails otherwise says nothing about its lease."""
THROTTLED = {
    "KMS.ThrottlingException",
    "KmsThrottled",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "RequestThrottled",
    "ThrottlingException",
    "Throttling",
}
NO_CREDENTIALS = (
    boto.NoCredentialsError,
    boto.PartialCredentialsError,
    boto.CredentialRetrievalError,
    boto.ProfileNotFound,
    boto.SSOError,
    boto.TokenRetrievalError,
)


class Place(NamedTuple):
    """The queue or table that a call was about, and its region."""

    kind: str
    name: str
    region: str | None
    url_region: str | None = None

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} in {self.region or 'no region'}"


class BatchPartlySentError(MailboxError):
    """Some messages of a batch were sent and some were not.

    ``results`` has an item for each body, in order: the id of the message, or the error if it was
    not sent. Send only the bodies with errors again.
    """

    def __init__(self, results: Sequence[str | MailboxError]) -> None:
        failed = {n: result for n, result in enumerate(results) if not isinstance(result, str)}
        first = min(failed)
        super().__init__(
            f"{len(failed)} of {len(results)} messages were not sent (the first is number "
            f"{first}: {failed[first]}); see .results for the others"
        )
        self.results = list(results)


@contextmanager
def translated(place: Place) -> Iterator[None]:
    """Translate errors of botocore into ours."""
    try:
        yield
    except boto.ClientError as error:
        # If AWS refuses a signature, its answer contains the whole request with the session token.
        cause = None if code_of(error) in BAD_CREDENTIALS else error
        raise translate(error, place) from cause
    except boto.BotoCoreError as error:
        raise translate(error, place) from error


def code_of(error: boto.ClientError) -> str:
    """Return the error code without the prefix that only some protocols have."""
    return plain_code(error.response.get("Error", {}).get("Code"))


def plain_code(code: object) -> str:
    """Return an error code without that prefix."""
    return str(code or "").removeprefix("AWS.SimpleQueueService.")


def translate(error: Exception, place: Place) -> MailboxError:
    """Return the error that a user should see."""
    if isinstance(error, boto.ClientError):
        return _refused(error, place)
    if isinstance(error, NO_CREDENTIALS):
        return MailboxConnectionError(
            f"{place}: no AWS credentials were found ({type(error).__name__}); configure a role, "
            f"a profile, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if isinstance(error, boto.NoRegionError):
        return MailboxConnectionError(
            f"{place}: no AWS region is configured; name it in the URL or in AWS_DEFAULT_REGION"
        )
    if isinstance(error, boto.ParamValidationError):
        # The error's text contains the parameters, and so the bodies.
        return InvalidParameterError(f"{place}: botocore refused the parameters of a call")
    return MailboxConnectionError(f"{place} cannot be reached: {type(error).__name__}")


def _refused(error: boto.ClientError, place: Place) -> MailboxError:
    code, operation = code_of(error), error.operation_name
    if code in MISSING:
        return MailboxResolutionError(place.name, _missing(place))
    if code in DENIED:
        return MailboxConnectionError(
            f"{place}: these credentials may not call {operation}; docs/aws.md has the policy"
        )
    if code in BAD_CREDENTIALS:
        return MailboxConnectionError(f"{place}: AWS does not accept these credentials ({code})")
    if code == "OverLimit":
        return MailboxFullError(
            f"{place}: too many messages are in flight, so SQS delivers no more; "
            f"acknowledge some, or find out which workers hold them"
        )
    if code == "PurgeQueueInProgress":
        return MailboxError(
            f"{place} was purged less than a minute ago, and SQS allows one purge a minute; "
            f"nothing was purged now"
        )
    if code == "QueueDeletedRecently":
        return MailboxError(
            f"{place} was deleted less than a minute ago, and SQS lets nobody make it again before "
            f"that; try again in a minute"
        )
    if code in THROTTLED:
        return MailboxConnectionError(f"{place}: AWS throttles {operation} ({code}); try later")
    text = f"{place}: {operation} failed with {code}: {error.response['Error'].get('Message', '')}"
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    return MailboxConnectionError(text) if status >= 500 else MailboxError(text)


def _missing(place: Place) -> str:
    if place.url_region and place.url_region != place.region:
        return (
            f"there is no {place}: its URL is for {place.url_region}, "
            f"but the client is for {place.region}"
        )
    return f"there is no {place}: create it, or check name, region and account"
