"""The loop that handles dead letters."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.dispatch import Dispatcher, publish
from weakincentives.runtime.events import DeadLetterProcessed
from weakincentives.runtime.mailbox import Mailbox
from weakincentives.runtime.worker.backoff import Backoff
from weakincentives.runtime.worker.built_on_worker import BuiltOnWorker
from weakincentives.runtime.worker.type_arguments import arguments_of, bind
from weakincentives.runtime.worker.validation import check_made_of, is_async
from weakincentives.runtime.worker.worker import Handler, Worker, WorkerConfig

from .letter import DeadLetter, age_of, log_processing

__all__ = ["DLQConsumer"]

T = TypeVar("T", default=Any)

ONE_HOUR = 3600.0


class ToldHandler:
    """Wraps the handler of a consumer: logs each letter, and publishes that it was processed."""

    def __init__(
        self, handler: Callable[..., Any], mailbox: Any, dispatcher: Dispatcher | None
    ) -> None:
        self._mailbox = mailbox
        self._dispatcher = dispatcher
        self._action = getattr(handler, "__name__", type(handler).__name__)
        self.wrapped = self._async(handler) if is_async(handler) else self._plain(handler)

    def _plain(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(handler, updated=())
        def handle(letter: Any, *job: Any, **named: Any) -> Any:
            began = self._begin(letter)
            result = handler(letter, *job, **named)
            self._end(letter, began)
            return result

        return handle

    def _async(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(handler, updated=())
        async def handle(letter: Any, *job: Any, **named: Any) -> Any:
            began = self._begin(letter)
            result = await handler(letter, *job, **named)
            self._end(letter, began)
            return result

        return handle

    def _begin(self, letter: object) -> float:
        if isinstance(letter, DeadLetter):  # an in-memory mailbox does not check types
            log_processing(letter, self._action)
        return time.monotonic()

    def _end(self, letter: object, began: float) -> None:
        dispatcher = self._dispatcher or getattr(self._mailbox, "dispatcher", None)
        if dispatcher is not None and isinstance(letter, DeadLetter):
            seconds = time.monotonic() - began
            event = DeadLetterProcessed(
                mailbox=getattr(self._mailbox, "name", "-"),
                message_id=letter.message_id,
                source=letter.source_mailbox,
                error_type=letter.last_error_type,
                age_seconds=max(0.0, age_of(letter) - seconds),
                seconds=seconds,
            )
            publish(dispatcher, event)


class DLQConsumer(BuiltOnWorker, Generic[T]):
    """A loop that calls ``handler`` with each dead letter; a failed letter is retried hourly.

    A letter whose handler fails is never dead-lettered again.
    """

    def __init__(
        self,
        *,
        mailbox: Mailbox[DeadLetter[T], None],
        handler: Handler[DeadLetter[T], object],
        visibility_timeout: float = 300,
        config: WorkerConfig | None = None,
    ) -> None:
        self.dead_letters = mailbox
        self._visibility_timeout = visibility_timeout
        hourly = Backoff(base=ONE_HOUR, cap=ONE_HOUR, jitter=False)
        config = replace(
            config or WorkerConfig(),
            backoff=hourly,
            failure_log="DLQ handler failed",
            failure_level=logging.ERROR,
        )
        check_made_of(mailbox, handler, None, None, config, None)
        told = ToldHandler(handler, mailbox, config.dispatcher)
        self._worker: Worker[DeadLetter[T], Any] = Worker(mailbox, told.wrapped, config=config)

    def _bind(self) -> None:
        (body_type,) = arguments_of(self, DLQConsumer)
        bind(self.dead_letters, DeadLetter[body_type], None)  # type: ignore[valid-type]

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,
        wait_time_seconds: float = 20,
    ) -> None:
        """Handle dead letters until `shutdown`."""
        super().run(
            max_iterations=max_iterations,
            visibility_timeout=self._lease(visibility_timeout),
            wait_time_seconds=wait_time_seconds,
        )

    async def run_async(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,
        wait_time_seconds: float = 20,
    ) -> None:
        """Do what `run` does, in the event loop of the caller; for async handlers."""
        await super().run_async(
            max_iterations=max_iterations,
            visibility_timeout=self._lease(visibility_timeout),
            wait_time_seconds=wait_time_seconds,
        )

    def _lease(self, asked: float | None) -> float:
        return self._visibility_timeout if asked is None else asked
