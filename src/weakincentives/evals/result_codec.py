"""Reads results from messages, and packs many results into one message."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from weakincentives.runtime import Message, SerializationError

from .messages import EvalResult
from .score import Score

__all__ = ["pack", "read_results"]

# A pack is an EvalResult without a sample, so that it fits into every mailbox of results.
PACK = "PackedResults"
MAX_TEXT = 500

_decoder = msgspec.json.Decoder(tuple[EvalResult, ...])


def pack(results: Sequence[EvalResult], run_id: str) -> EvalResult:
    """Return several results of a run as one; `read_results` unpacks them."""
    try:
        written = msgspec.json.encode(results).decode()
    except UnicodeEncodeError as error:  # in memory, text may contain what JSON cannot
        raise SerializationError(f"{len(results)} results cannot be packed: {error}") from error
    return EvalResult("", Score(0.0, False), run_id, error_type=PACK, output=written)


def read_results(message: Message[Any, Any]) -> tuple[EvalResult, ...]:
    """Return the results in a message.

    A result that cannot be decoded becomes an error result if it names its sample or request;
    otherwise this raises `SerializationError`.
    """
    body: Any = None
    try:
        body = message.body
        result = _converted(body)
        if result.error_type == PACK and not result.sample_id and result.request_id is None:
            return _decoder.decode(result.output or "")
        return (result,)
    except (SerializationError, msgspec.MsgspecError) as error:
        broken = _broken(_fields(message) if body is None else body, error)
        if broken is None:
            raise SerializationError(str(error)) from error
        return (broken,)


def _converted(body: Any) -> EvalResult:
    if isinstance(body, EvalResult):
        return body
    return msgspec.convert(body, EvalResult, strict=False)


def _fields(message: Message[Any, Any]) -> Any:
    """Return the body of a message as plain JSON values; None if it is not JSON."""
    raw = getattr(getattr(message, "_envelope", None), "body", None)
    if not isinstance(raw, msgspec.Raw):
        return None
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None


def _broken(fields: Any, error: Exception) -> EvalResult | None:
    """Return the error result for a broken one; None if it names neither sample nor request."""
    if not isinstance(fields, dict):
        return None
    sample, run, request = (fields.get(name) for name in ("sample_id", "run_id", "request_id"))
    try:
        request_id = UUID(request) if isinstance(request, str) else None
    except ValueError:
        request_id = None
    sample_id = sample if isinstance(sample, str) else ""
    if not sample_id and request_id is None:
        return None
    return EvalResult(
        sample_id,
        Score(0.0, False),
        run if isinstance(run, str) else "",
        error=f"The result cannot be read: {error}"[:MAX_TEXT],
        error_type=SerializationError.__name__,
        request_id=request_id,
    )
