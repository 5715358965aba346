"""Which types a loop was given."""

import sys
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from weakincentives import connect
from weakincentives.adapters import CallableAdapter
from weakincentives.evals import EvalLoop, EvalRequest, EvalResult, exact_match
from weakincentives.runtime import (
    InMemoryMailbox,
    InvalidParameterError,
    MainLoop,
    MainLoopRequest,
    MainLoopResult,
)
from weakincentives.runtime.worker.type_arguments import arguments_of

A = TypeVar("A")
B = TypeVar("B")


class Base(Generic[A, B]):
    pass


class Plain(Base[int, str]):
    pass


class Deeper(Plain):
    pass


class Half(Base[A, str], Generic[A]):
    pass


class Whole(Half[list[int]]):
    pass


class Swapped(Base[B, A], Generic[A, B]):
    pass


class Nested(Base[list[A], dict[str, A]], Generic[A]):
    pass


class Other:
    pass


class Mixed(Other, Plain):
    pass


class OtherGeneric(Generic[A]):
    pass


class OtherFixed(OtherGeneric[bytes]):
    pass


class Behind(OtherFixed, Plain):
    """It inherits what another base was given, which says nothing of ours."""


@pytest.mark.parametrize(
    ("instance", "expected"),
    [
        (Base(), (Any, Any)),
        (Base[int, str](), (int, str)),
        (Plain(), (int, str)),
        (Deeper(), (int, str)),
        (Half(), (Any, str)),
        (Half[bytes](), (bytes, str)),
        (Whole(), (list[int], str)),
        (Swapped[int, str](), (str, int)),
        (Nested[int](), (list[int], dict[str, int])),
        (Mixed(), (int, str)),
        (Behind(), (int, str)),
    ],
)
def test_arguments(instance, expected):
    assert arguments_of(instance, Base) == expected


@dataclass
class One:
    pass


@dataclass
class Two:
    pass


TwoOrMore = list[One | Two]  # nothing on the wire tells such members apart


class OrderLoop(MainLoop[int, str]):
    pass


ADAPTER = CallableAdapter(lambda prompt: str(prompt.params))


def test_a_loop_binds_its_types_at_once():
    box = InMemoryMailbox("orders")
    OrderLoop(adapter=ADAPTER, requests=box)
    assert box._types.body == MainLoopRequest[int]
    assert box._types.reply == MainLoopResult[str]


def test_a_loop_made_through_an_alias_binds_its_types_at_once():
    box, responses = InMemoryMailbox("orders"), InMemoryMailbox("responses")
    loop = MainLoop[int, str](adapter=ADAPTER, requests=box, responses=responses)
    assert box._types.body == MainLoopRequest[int]
    assert box._types.reply == MainLoopResult[str]
    assert responses._types.body == MainLoopResult[str]
    assert arguments_of(loop, MainLoop) == (int, str)


def test_a_reply_awaited_before_the_run_has_its_type(tmp_path):
    with connect(f"sqlite:///{tmp_path}/box.db") as backend:
        box = backend.mailbox("orders")
        loop = MainLoop[int, str](adapter=ADAPTER, requests=box)
        reply = box.send_expecting_reply(MainLoopRequest(request=7))
        loop.run(max_iterations=1, wait_time_seconds=0)
        result = reply.wait(timeout=60)
    assert isinstance(result, MainLoopResult)
    assert result.output == "7"


def test_an_eval_loop_made_through_an_alias_binds_its_types_at_once():
    box = InMemoryMailbox("samples")
    loop = OrderLoop(adapter=ADAPTER, requests=InMemoryMailbox("unused"))
    EvalLoop[int, str, bytes](loop=loop, evaluator=exact_match, requests=box)
    assert box._types.body == EvalRequest[int, bytes]
    assert box._types.reply == EvalResult


def test_types_that_cannot_travel_are_refused_at_the_latest_when_the_loop_runs(tmp_path):
    with connect(f"sqlite:///{tmp_path}/box.db") as backend, pytest.raises(InvalidParameterError):
        box = backend.mailbox("orders")
        MainLoop[int, TwoOrMore](adapter=ADAPTER, requests=box).run(max_iterations=1)


def test_what_the_mailbox_was_told_stands():
    box = InMemoryMailbox("orders", body_type=MainLoopRequest[float])
    OrderLoop(adapter=ADAPTER, requests=box)
    assert box._types.body == MainLoopRequest[float]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="PEP 695 syntax needs Python 3.12")
def test_pep_695_subclasses():
    space: dict[str, Any] = {"Base": Base, "MainLoop": MainLoop}
    exec("class New[X](Base[X, str]): pass\nclass Newer(New[int]): pass", space)
    assert arguments_of(space["Newer"](), Base) == (int, str)
    assert arguments_of(space["New"][bytes](), Base) == (bytes, str)
