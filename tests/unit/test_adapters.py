"""Functions as adapters."""

import asyncio

import pytest

from weakincentives.adapters import CallableAdapter, PromptResponse
from weakincentives.prompt import Prompt
from weakincentives.runtime import Session


async def promise(prompt):
    return "later"


def stream(prompt):
    yield "bit by bit"


async def stream_later(prompt):
    yield "bit by bit"


class Promising:
    async def answer(self, prompt):
        return "later"


@pytest.mark.parametrize("fn", [stream, stream_later])
def test_a_generator_is_refused(fn):
    with pytest.raises(TypeError, match="is a generator"):
        CallableAdapter(fn)


@pytest.mark.parametrize("fn", [promise, Promising().answer])
def test_an_adapter_of_an_async_function_is_async(fn):
    response = asyncio.run(CallableAdapter(fn).evaluate(Prompt("ask"), session=Session()))
    assert response == PromptResponse("ask", "later", "later")


@pytest.mark.parametrize("fn", [None, "print", 1])
def test_what_cannot_be_called_is_refused(fn):
    with pytest.raises(TypeError, match="function"):
        CallableAdapter(fn)


def test_what_is_returned_becomes_a_response():
    answer = CallableAdapter(lambda prompt: prompt.text.upper())
    response = answer.evaluate(Prompt("shout", "hey"), session=Session())
    assert response == PromptResponse("shout", "HEY", "HEY")
