"""Requests through prompt and adapter to results."""

from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import in_background
from weakincentives.adapters import CallableAdapter, PromptResponse, VisibilityExpansionRequired
from weakincentives.contrib.mailbox.testing import FakeMailbox
from weakincentives.prompt import Prompt
from weakincentives.runtime import (
    Backoff,
    Budget,
    Deadline,
    DLQPolicy,
    InMemoryMailbox,
    InvalidParameterError,
    LeaseExtenderConfig,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    SerializationError,
    Session,
    current_lease,
)


@dataclass(frozen=True)
class Order:
    item: str
    count: int = 1


@dataclass(frozen=True)
class Receipt:
    text: str


class Spy:
    """An adapter that remembers what it was given."""

    def __init__(self, output=None):
        self.calls = []
        self.output = output

    def evaluate(self, prompt, *, session, deadline=None, budget=None):
        self.calls.append((prompt, session, deadline, budget))
        return PromptResponse(prompt.name, "text", self.output)


class Shop(MainLoop[Order, Receipt]):
    def prepare(self, request):
        return Prompt("shop", f"sell {request.item}", Receipt), Session()


def sell(prompt):
    return Receipt(prompt.text)


@pytest.fixture
def box():
    return InMemoryMailbox("requests", serialize=True)


def test_a_request_becomes_a_result(box):
    loop = Shop(adapter=CallableAdapter(sell), requests=box)
    request = MainLoopRequest[Order](request=Order("tea"))
    reply = box.send_expecting_reply(request)
    loop.run(max_iterations=1)
    result = reply.wait(timeout=60)
    assert isinstance(result, MainLoopResult)
    assert result.request_id == request.request_id
    assert result.output == Receipt("sell tea")
    assert result.error is None
    assert result.session_id is not None
    assert abs((datetime.now(UTC) - result.completed_at).total_seconds()) < 60


def test_a_plain_loop_works_with_the_request_itself():
    box = InMemoryMailbox("requests")
    reply = box.send_expecting_reply(MainLoopRequest(request="a"))
    MainLoop(adapter=CallableAdapter(lambda prompt: prompt.params.upper()), requests=box).run(
        max_iterations=1
    )
    assert reply.wait(timeout=120).output == "A"


def test_responses(box):
    responses = InMemoryMailbox("responses", serialize=True)
    request_id = uuid4()
    box.send(MainLoopRequest(request=Order("tea"), request_id=request_id))
    Shop(adapter=CallableAdapter(sell), requests=box, responses=responses).run(max_iterations=1)
    (msg,) = responses.receive()
    assert msg.body.request_id == request_id
    assert msg.body.output == Receipt("sell tea")
    assert box.stats().total == 0


def test_a_failure_is_told_by_type_and_reference(box):
    def adapter(prompt):
        raise RuntimeError("secret detail")

    reply = box.send_expecting_reply(MainLoopRequest(request=Order("tea")))
    Shop(adapter=CallableAdapter(adapter), requests=box).run(max_iterations=1)
    result = reply.wait(timeout=60)
    assert result.output is None
    assert result.error.startswith("RuntimeError (ref ")
    assert "secret" not in result.error


def test_error_detail_text(box):
    def adapter(prompt):
        raise RuntimeError("the detail")

    reply = box.send_expecting_reply(MainLoopRequest(request=Order("tea")))
    config = MainLoopConfig(error_detail="text")
    Shop(adapter=CallableAdapter(adapter), requests=box, config=config).run(max_iterations=1)
    assert "the detail" in reply.wait(timeout=60).error


def test_visibility_expansion_is_retried_and_told_to_nobody(box):
    calls = []

    def adapter(prompt):
        calls.append(prompt)
        if len(calls) < 3:
            raise VisibilityExpansionRequired
        return Receipt("done")

    config = MainLoopConfig(backoff=Backoff(base=0, cap=0))
    reply = box.send_expecting_reply(MainLoopRequest(request=Order("tea")))
    Shop(adapter=CallableAdapter(adapter), requests=box, config=config).run(max_iterations=3)
    assert reply.wait(timeout=120).output == Receipt("done")


# --- execute --------------------------------------------------------------------------------


def test_execute_runs_without_a_mailbox(box):
    finalized = []

    class Final(Shop):
        def finalize(self, prompt, session):
            finalized.append((prompt.name, session))

    response, session = Final(adapter=CallableAdapter(sell), requests=box).execute(Order("tea"))
    assert response.output == Receipt("sell tea")
    assert finalized == [("shop", session)]
    assert not current_lease().lost


def test_adapters_get_what_is_left(box):
    spy = Spy()

    class Thinking(Shop):
        def prepare(self, request):
            prompt, session = super().prepare(request)
            session.spend(input_tokens=30)
            return prompt, session

    late, early = Deadline.after(500), Deadline.after(100)
    loop = Thinking(
        adapter=spy,
        requests=box,
        config=MainLoopConfig(deadline=late, budget=Budget(max_total_tokens=100)),
    )
    loop.execute(Order("tea"))
    assert spy.calls[0][2:] == (late, Budget(max_total_tokens=70))
    loop.execute(Order("tea"), deadline=early, budget=Budget(max_input_tokens=50))
    assert spy.calls[1][2:] == (early, Budget(max_input_tokens=20))
    loop.execute(Order("tea"), deadline=Deadline.after(900))
    assert spy.calls[2][2] == late


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"deadline": Deadline.after(-1)}, "DeadlineExceededError"),
        ({"budget": Budget(max_total_tokens=10)}, "BudgetExceededError"),
    ],
)
def test_limits_are_enforced_before_the_adapter_is_called(box, limits, error):
    spy = Spy()

    class Thinking(Shop):
        def prepare(self, request):
            prompt, session = super().prepare(request)
            session.spend(input_tokens=30)
            return prompt, session

    reply = box.send_expecting_reply(MainLoopRequest(request=Order("tea"), **limits))
    Thinking(adapter=spy, requests=box).run(max_iterations=1)
    assert reply.wait(timeout=120).error.startswith(error)
    assert spy.calls == []


def test_a_late_request_is_dead_lettered_at_once(box):
    letters = InMemoryMailbox("dead", serialize=True)
    box.send(MainLoopRequest(request=Order("tea"), deadline=Deadline.after(-1)))
    Shop(adapter=Spy(), requests=box, dlq=DLQPolicy(mailbox=letters)).run(max_iterations=1)
    assert letters.receive()[0].body.last_error_type.endswith("DeadlineExceededError")


# --- resources ------------------------------------------------------------------------------


def test_resources_reach_the_adapter():
    box = InMemoryMailbox("requests")
    seen = []

    class Adapter(Spy):
        def evaluate(self, prompt, *, session, deadline=None, budget=None):
            seen.append([session.resource(kind) for kind in (str, int, float)])
            return super().evaluate(prompt, session=session)

    loop = MainLoop(
        adapter=Adapter(),
        requests=box,
        resources={str: "loop", int: 1, float: 1.0},
        config=MainLoopConfig(resources={int: 2, float: 2.0}),
    )
    box.send(MainLoopRequest(request="a", resources={float: 3.0}))
    loop.run(max_iterations=1, wait_time_seconds=0)
    loop.execute("b")
    assert seen == [["loop", 2, 3.0], ["loop", 2, 2.0]]


@pytest.mark.parametrize("resources", [{str: "x"}, {"text": "x"}, {}])
def test_resources_never_reach_the_wire(box, resources):
    with pytest.raises(SerializationError, match="nothing was sent"):
        box.send(MainLoopRequest(request=Order("tea"), resources=resources))
    assert box.stats().total == 0


def test_resources_from_the_wire_are_refused(box):
    """A sender that writes its own JSON cannot put anything there either."""
    letters = InMemoryMailbox("dead", serialize=True)
    request = {"request": {"item": "tea"}, "resources": {"a": 1}, "request_id": str(uuid4())}
    box.send(request)
    spy = Spy()
    Shop(adapter=spy, requests=box, dlq=DLQPolicy(mailbox=letters)).run(max_iterations=1)
    assert spy.calls == []
    (letter,) = letters.receive()
    assert str(letter.body.request_id) == request["request_id"]
    assert b"tea" in letter.body.raw_payload


# --- leases and the loop's end --------------------------------------------------------------


def test_a_request_may_keep_its_lease_in_its_own_way():
    box = FakeMailbox()
    own = LeaseExtenderConfig(interval=1, extension=900, max_lease_seconds=1000)
    seen = []
    box.send(MainLoopRequest(request="a", lease_extender=own))
    MainLoop(
        adapter=CallableAdapter(lambda prompt: seen.append(current_lease().config)), requests=box
    ).run(max_iterations=1)
    assert seen == [own]


def kept_by(asked: LeaseExtenderConfig, loops: LeaseExtenderConfig, visibility: float):
    """Serve a request that asks for this and return how its lease was kept, and for how long."""
    box = FakeMailbox()
    seen = []
    box.send(MainLoopRequest(request="a", lease_extender=asked))

    def adapter(prompt):
        lease = current_lease()
        seen.append((lease.config, lease.next_extension()))

    MainLoop(
        adapter=CallableAdapter(adapter),
        requests=box,
        config=MainLoopConfig(lease_extender=loops),
    ).run(max_iterations=1, visibility_timeout=visibility)
    return seen[0]


def test_what_a_request_leaves_at_its_default_is_the_loops():
    loops = LeaseExtenderConfig(interval=20, max_lease_seconds=None)
    config, _ = kept_by(LeaseExtenderConfig(interval=5), loops, visibility=40)
    assert config == LeaseExtenderConfig(interval=5, extension=40, max_lease_seconds=None)


@pytest.mark.parametrize(
    "loops",
    [
        LeaseExtenderConfig(),
        LeaseExtenderConfig(max_lease_seconds=600),
        LeaseExtenderConfig(max_lease_seconds=None),
    ],
)
def test_a_sender_cannot_ask_for_more_than_the_loop_allows(loops):
    greedy = LeaseExtenderConfig(interval=0.001, extension=3e8, max_lease_seconds=3e8)
    config, seconds = kept_by(greedy, loops, visibility=40)
    assert seconds <= (loops.max_lease_seconds or 43_200)
    assert loops.max_lease_seconds is None or config.max_lease_seconds <= loops.max_lease_seconds
    assert config.interval >= 1


def test_requests_round_trip_with_everything(box):
    request = MainLoopRequest[Order](
        request=Order("tea", 2),
        budget=Budget(max_cost=1.5),
        deadline=Deadline.after(60),
        lease_extender=LeaseExtenderConfig(interval=5),
    )
    Shop(adapter=Spy(), requests=box)
    box.send(request)
    (msg,) = box.receive()
    assert msg.body == request


def test_run_and_shutdown():
    box = InMemoryMailbox("requests")
    loop = MainLoop(adapter=CallableAdapter(lambda prompt: prompt.params), requests=box)
    assert not loop.running
    with in_background(loop):
        eventually(lambda: loop.running)
        assert box.send_expecting_reply(MainLoopRequest(request=1)).wait(timeout=60).output == 1
        assert loop.heartbeat.elapsed() < 60
    assert not loop.running
    assert loop.lease_extender.counters.held == 0


def test_a_function_is_no_adapter_yet(box):
    with pytest.raises(InvalidParameterError, match=r"CallableAdapter\(sell\)"):
        MainLoop(adapter=sell, requests=box)


@pytest.mark.parametrize(
    "nonsense", [{"concurrency": 0}, {"batch": 1.5}, {"error_detail": "everything"}]
)
def test_a_config_of_nonsense_is_refused(nonsense):
    with pytest.raises(InvalidParameterError, match=next(iter(nonsense))):
        MainLoopConfig(**nonsense)


def test_a_body_that_is_no_request_is_a_failure():
    box = InMemoryMailbox("requests")
    reply = box.send_expecting_reply("not a request")
    MainLoop(adapter=Spy(), requests=box).run(max_iterations=1)
    result = reply.wait(timeout=60)
    assert result.error.startswith("SerializationError")
    assert result.request_id.int == 0
