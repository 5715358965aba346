"""MainLoop: requests from a mailbox, through prompt and adapter, to results."""

from collections.abc import Iterator, Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, Literal
from uuid import UUID, uuid4

from typing_extensions import TypeVar

from weakincentives.adapters import PromptResponse, ProviderAdapter
from weakincentives.dataclasses import FrozenDataclass
from weakincentives.dispatch import Dispatcher
from weakincentives.prompt import Prompt
from weakincentives.runtime.mailbox import InvalidParameterError, Mailbox, SerializationError

from .backoff import Backoff
from .deadline import Budget, Deadline, DeadlineExceededError
from .dlq import DLQPolicy
from .heartbeat import Heartbeat
from .lease_extender import LeaseExtender, LeaseExtenderConfig, current_lease
from .session import Session
from .type_arguments import arguments_of, bind
from .worker import Failure, Worker, WorkerConfig

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
    """Live objects by their type: they reach an adapter in this process, and never the wire."""

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
    # As the codec sees it: a class that it can neither write nor read.
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
    """Live objects for the adapter; durable mailboxes refuse a request that has some."""
    request_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=_now)
    lease_extender: LeaseExtenderConfig | None = None
    """How the lease of this very request is kept, instead of the loop's way."""

    def __post_init__(self) -> None:
        if self.resources is not None and not isinstance(self.resources, LiveResources):
            object.__setattr__(self, "resources", LiveResources(self.resources))


@FrozenDataclass()
class MainLoopResult(Generic[OutputT]):
    """What came of a request: an output, or an error."""

    request_id: UUID
    """The request's own id; all zeros if the request could not be read."""
    output: OutputT | None = None
    error: str | None = None
    session_id: UUID | None = None
    completed_at: datetime = field(default_factory=_now)


@FrozenDataclass()
class MainLoopConfig:
    """How a `MainLoop` works, and what its requests may take unless they say so themselves."""

    deadline: Deadline | None = None
    budget: Budget | None = None
    resources: Mapping[type[object], object] | None = None
    lease_extender: LeaseExtenderConfig = field(default_factory=LeaseExtenderConfig)
    backoff: Backoff = field(default_factory=Backoff)
    error_detail: Literal["type", "text"] = "type"
    concurrency: int = 1
    batch: int = 1
    dispatcher: Dispatcher | None = None

    def __post_init__(self) -> None:
        self.for_worker()  # which knows what is nonsense

    def for_worker(self) -> WorkerConfig:
        """Return the part that every loop has."""
        return WorkerConfig(
            concurrency=self.concurrency,
            batch=self.batch,
            lease_extender=self.lease_extender,
            backoff=self.backoff,
            error_detail=self.error_detail,
            dispatcher=self.dispatcher,
        )


class MainLoop(Generic[UserRequestT, OutputT]):
    """Serves requests: prompt from request, response from adapter, result to the sender.

    Subclass it and override `prepare` (and `finalize`), or use it as it is with an adapter that
    reads the request from ``prompt.params``.
    """

    def __init__(
        self,
        *,
        adapter: ProviderAdapter[OutputT],
        requests: Mailbox[MainLoopRequest[UserRequestT], MainLoopResult[OutputT]],
        responses: Mailbox[MainLoopResult[OutputT], None] | None = None,
        config: MainLoopConfig | None = None,
        dlq: DLQPolicy[MainLoopRequest[UserRequestT], MainLoopResult[OutputT]] | None = None,
        resources: Mapping[type[object], object] | None = None,
    ) -> None:
        if callable(adapter) and not hasattr(adapter, "evaluate"):
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
            self._handle,
            error_reply=_error_result,
            responses=responses,
            dlq=dlq,
            config=config.for_worker(),
        )
        # What Loop[Order, Receipt](...) says becomes known only after this: then run() binds.
        if arguments_of(self, MainLoop) != (Any, Any):
            self._bind()

    def prepare(self, request: UserRequestT) -> tuple[Prompt[Any], Session]:
        """Make a prompt and a session for a request; by default the request is its ``params``."""
        return Prompt(type(self).__name__, params=request), Session()

    def finalize(self, prompt: Prompt[Any], session: Session) -> None:
        """Do what is left to do after a response; by default nothing."""

    def execute(
        self,
        request: UserRequestT,
        *,
        budget: Budget | None = None,
        deadline: Deadline | None = None,
        resources: Mapping[type[object], object] | None = None,
    ) -> tuple[PromptResponse[OutputT], Session]:
        """Run one request here and now, without a mailbox."""
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
        response = self._adapter.evaluate(prompt, session=session, deadline=deadline, budget=left)
        self.finalize(prompt, session)
        return response, session

    @property
    def running(self) -> bool:
        """Whether `run` is in progress."""
        return self._worker.running

    @property
    def heartbeat(self) -> Heartbeat:
        """The loop's pulse."""
        return self._worker.heartbeat

    @property
    def lease_extender(self) -> LeaseExtender:
        """What keeps the leases of this loop, with its counters."""
        return self._worker.lease_extender

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Serve requests until `shutdown`, or for ``max_iterations`` receives, empty or not."""
        self._bind()
        self._worker.run(
            max_iterations=max_iterations,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
        )

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """End the loop for good; True if it has ended within ``timeout``."""
        return self._worker.shutdown(timeout=timeout)

    def _bind(self) -> None:
        request_type, output_type = arguments_of(self, MainLoop)
        result = MainLoopResult[output_type]  # type: ignore[valid-type]
        bind(self._requests, MainLoopRequest[request_type], result)  # type: ignore[valid-type]
        if self._responses is not None:
            bind(self._responses, result, None)

    def _handle(self, request: MainLoopRequest[UserRequestT]) -> MainLoopResult[OutputT]:
        if not isinstance(request, MainLoopRequest):  # in memory a body is what was sent
            raise SerializationError(
                f"a {type(request).__name__} is no request: send MainLoopRequest(request=...)"
            )
        if request.lease_extender is not None:
            current_lease().adjust(request.lease_extender)
        response, session = self.execute(
            request.request,
            budget=request.budget,
            deadline=request.deadline,
            resources=request.resources,
        )
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
