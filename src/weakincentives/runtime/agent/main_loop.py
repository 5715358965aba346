"""MainLoop receives requests, runs each through a prompt and an adapter, and sends results."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple
from uuid import UUID, uuid4

from typing_extensions import TypeVar

from weakincentives.adapters import AsyncProviderAdapter, PromptResponse, ProviderAdapter
from weakincentives.dataclasses import FrozenDataclass
from weakincentives.dispatch import Dispatcher
from weakincentives.prompt import Prompt
from weakincentives.runtime.budget import Budget, Deadline, DeadlineExceededError
from weakincentives.runtime.dead_letters.policy import DLQPolicy
from weakincentives.runtime.leases.extender import LeaseExtender, LeaseExtenderConfig, current_lease
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    Mailbox,
    SerializationError,
    UnsupportedOperationError,
)
from weakincentives.runtime.worker.backoff import Backoff
from weakincentives.runtime.worker.built_on_worker import BuiltOnWorker
from weakincentives.runtime.worker.config import within
from weakincentives.runtime.worker.type_arguments import BoundByAlias, arguments_of, bind
from weakincentives.runtime.worker.validation import is_async
from weakincentives.runtime.worker.worker import Failure, Worker, WorkerConfig

from .session import Session

__all__ = [
    "Budget",
    "Deadline",
    "DeadlineExceededError",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "MainLoop",
    "MainLoopConfig",
    "MainLoopRequest",
    "MainLoopResult",
    "Session",
    "current_lease",
]

UserRequestT = TypeVar("UserRequestT", default=Any)
OutputT = TypeVar("OutputT", default=Any)

NO_REQUEST = UUID(int=0)


class LiveResources(Mapping[type[object], object]):
    """Live objects by type, for the adapter in this process; they are never serialised."""

    def __init__(self, resources: Mapping[type[object], object]) -> None:
        self._resources = dict(resources)

    def __getitem__(self, kind: type[object]) -> object:
        return self._resources[kind]

    def __iter__(self) -> Iterator[type[object]]:
        return iter(self._resources)

    def __len__(self) -> int:
        return len(self._resources)

    def __repr__(self) -> str:
        return f"<LiveResources {', '.join(kind.__name__ for kind in self)}>"


if TYPE_CHECKING:
    Resources = Mapping[type[object], object]
else:
    # At run time the codec sees this class, which it can neither encode nor decode.
    Resources = LiveResources


def _now() -> datetime:
    return datetime.now(UTC)


@FrozenDataclass()
class MainLoopRequest(Generic[UserRequestT]):
    """A request to a `MainLoop`."""

    request: UserRequestT
    budget: Budget | None = None
    deadline: Deadline | None = None
    resources: Resources | None = None
    """Live objects for the adapter; a durable mailbox refuses a request that has any."""
    request_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=_now)
    lease_extender: LeaseExtenderConfig | None = None
    """How the lease of this request is extended, within the limits of the loop; default values
    mean the loop's own."""

    def __post_init__(self) -> None:
        if self.resources is not None and not isinstance(self.resources, LiveResources):
            object.__setattr__(self, "resources", LiveResources(self.resources))


@FrozenDataclass()
class MainLoopResult(Generic[OutputT]):
    """The result of a request: an output or an error."""

    request_id: UUID
    """The request's id; all zeros if the request could not be read."""
    output: OutputT | None = None
    error: str | None = None
    session_id: UUID | None = None
    completed_at: datetime = field(default_factory=_now)


@FrozenDataclass()
class MainLoopConfig:
    """The settings of a `MainLoop`, and the defaults for requests that set no limits."""

    deadline: Deadline | None = None
    budget: Budget | None = None
    resources: Mapping[type[object], object] | None = None
    lease_extender: LeaseExtenderConfig = field(default_factory=LeaseExtenderConfig)
    backoff: Backoff = Backoff(base=60.0)
    error_detail: Literal["type", "text"] = "type"
    concurrency: int = 1
    batch: int = 1
    dispatcher: Dispatcher | None = None
    time_limit: float | None = None
    max_put_off: float = 86_400.0

    def __post_init__(self) -> None:
        self.for_worker()  # WorkerConfig validates the values

    def for_worker(self) -> WorkerConfig:
        """Return the settings that every worker has."""
        return WorkerConfig(
            concurrency=self.concurrency,
            batch=self.batch,
            lease_extender=self.lease_extender,
            backoff=self.backoff,
            error_detail=self.error_detail,
            dispatcher=self.dispatcher,
            time_limit=self.time_limit,
            max_put_off=self.max_put_off,
        )


class MainLoop(BoundByAlias, BuiltOnWorker, Generic[UserRequestT, OutputT]):
    """Serves requests: makes a prompt, asks the adapter, and replies with the result.

    If ``adapter.evaluate`` is async, all requests are tasks of one event loop.

    Subclass it and override `prepare` (and perhaps `finalize`), or use it as it is with an adapter
    that reads the request from ``prompt.params``.
    """

    def __init__(
        self,
        *,
        adapter: ProviderAdapter[OutputT] | AsyncProviderAdapter[OutputT],
        requests: Mailbox[MainLoopRequest[UserRequestT], MainLoopResult[OutputT]],
        responses: Mailbox[MainLoopResult[OutputT], None] | None = None,
        config: MainLoopConfig | None = None,
        dlq: DLQPolicy[MainLoopRequest[UserRequestT], MainLoopResult[OutputT]] | None = None,
        resources: Mapping[type[object], object] | None = None,
    ) -> None:
        if getattr(adapter, "evaluate", None) is None:
            raise InvalidParameterError(
                f"adapter needs a method evaluate(); write CallableAdapter({_named(adapter)})"
            )
        self.dlq = dlq
        self._adapter = adapter
        self._requests = requests
        self._responses = responses
        self._config = config = config if config is not None else MainLoopConfig()
        self._resources = {**(resources or {}), **(config.resources or {})}
        self._worker: Worker[MainLoopRequest[UserRequestT], MainLoopResult[OutputT]] = Worker(
            requests,
            self._handle_async if self.is_async else self._handle,
            error_reply=_error_result,
            responses=responses,
            dlq=dlq,
            config=config.for_worker(),
        )
        # For MainLoop[Order, Receipt](...), BoundByAlias binds the types right after __init__.
        if arguments_of(self, MainLoop) != (Any, Any):
            self._bind()

    @property
    def is_async(self) -> bool:
        """Whether the adapter is async, so that requests run as tasks of an event loop."""
        return is_async(self._adapter.evaluate)

    def prepare(self, request: UserRequestT) -> tuple[Prompt[Any], Session]:
        """Make a prompt and a session; by default the request becomes ``prompt.params``."""
        return Prompt(type(self).__name__, params=request), Session()

    def finalize(self, prompt: Prompt[Any], session: Session) -> None:
        """Run after each response, for subclasses to override; does nothing by default."""

    def execute(
        self,
        request: UserRequestT,
        *,
        budget: Budget | None = None,
        deadline: Deadline | None = None,
        resources: Mapping[type[object], object] | None = None,
    ) -> tuple[PromptResponse[OutputT], Session]:
        """Run one request in this thread, without a mailbox."""
        if self.is_async:
            raise UnsupportedOperationError(
                f"evaluate() of {self._adapter!r:.100} is async: await execute_async() instead"
            )
        prepared = self._prepared(request, budget, deadline, resources)
        response = prepared.ask(self._adapter)
        self.finalize(prepared.prompt, prepared.session)
        return response, prepared.session

    async def execute_async(
        self,
        request: UserRequestT,
        *,
        budget: Budget | None = None,
        deadline: Deadline | None = None,
        resources: Mapping[type[object], object] | None = None,
    ) -> tuple[PromptResponse[OutputT], Session]:
        """Do what `execute` does; an adapter that is not async is called in a thread."""
        if not self.is_async:
            return await asyncio.to_thread(
                self.execute, request, budget=budget, deadline=deadline, resources=resources
            )
        prepared = self._prepared(request, budget, deadline, resources)
        response = await prepared.ask(self._adapter)
        self.finalize(prepared.prompt, prepared.session)
        return response, prepared.session

    def _prepared(
        self,
        request: UserRequestT,
        budget: Budget | None,
        deadline: Deadline | None,
        resources: Mapping[type[object], object] | None,
    ) -> "Prepared":
        """Make what the adapter is asked, and check that there is time and budget left for it."""
        deadline = _earlier(deadline, self._config.deadline)
        if deadline is not None:
            deadline.check()
        prompt, session = self.prepare(request)
        session.resources = {**self._resources, **session.resources, **(resources or {})}
        session.budget = budget if budget is not None else self._config.budget
        left = None
        if session.budget is not None:
            session.budget.check(session.usage)
            left = session.budget.left(session.usage)
        if deadline is not None:
            deadline.check()
        return Prepared(prompt, session, deadline, left)

    def _bind(self) -> None:
        request_type, output_type = arguments_of(self, MainLoop)
        result = MainLoopResult[output_type]  # type: ignore[valid-type]
        bind(self._requests, MainLoopRequest[request_type], result)  # type: ignore[valid-type]
        if self._responses is not None:
            bind(self._responses, result, None)

    def _handle(self, request: MainLoopRequest[UserRequestT]) -> MainLoopResult[OutputT]:
        self._accept(request)
        response, session = self.execute(
            request.request,
            budget=request.budget,
            deadline=request.deadline,
            resources=request.resources,
        )
        return _result(request, response, session)

    async def _handle_async(
        self, request: MainLoopRequest[UserRequestT]
    ) -> MainLoopResult[OutputT]:
        self._accept(request)
        response, session = await self.execute_async(
            request.request,
            budget=request.budget,
            deadline=request.deadline,
            resources=request.resources,
        )
        return _result(request, response, session)

    def _accept(self, request: MainLoopRequest[UserRequestT]) -> None:
        """Check that it is a request, and extend its lease as its sender asks."""
        if not isinstance(request, MainLoopRequest):  # an in-memory mailbox does not check types
            raise SerializationError(
                f"a {type(request).__name__} is not a request: send MainLoopRequest(request=...)"
            )
        if request.lease_extender is not None:
            lease = current_lease()
            lease.adjust(within(request.lease_extender, lease.config))


class Prepared(NamedTuple):
    """A request that is ready for the adapter."""

    prompt: Prompt[Any]
    session: Session
    deadline: Deadline | None
    budget: Budget | None
    """What is left of it."""

    def ask(self, adapter: ProviderAdapter[Any] | AsyncProviderAdapter[Any]) -> Any:
        """Return the adapter's response, or an awaitable of it if the adapter is async."""
        return adapter.evaluate(
            self.prompt, session=self.session, deadline=self.deadline, budget=self.budget
        )


def _result(
    request: MainLoopRequest[Any], response: PromptResponse[OutputT], session: Session
) -> MainLoopResult[OutputT]:
    return MainLoopResult(
        request_id=request.request_id, output=response.output, session_id=session.session_id
    )


def _error_result(failure: Failure) -> MainLoopResult[Any]:
    return MainLoopResult(request_id=failure.request_id or NO_REQUEST, error=failure.text)


def _named(adapter: object) -> str:
    return getattr(adapter, "__name__", type(adapter).__name__)


def _earlier(one: Deadline | None, other: Deadline | None) -> Deadline | None:
    if one is None or other is None:
        return one or other
    return min(one, other, key=_expiry)


def _expiry(deadline: Deadline) -> datetime:
    return deadline.expires_at
