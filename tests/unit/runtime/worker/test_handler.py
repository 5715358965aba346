"""Which handlers get a job, worked out once from what they can be called with."""

from functools import partial, wraps
from unittest.mock import Mock

import pytest

from weakincentives.runtime import InMemoryMailbox, InvalidParameterError, Worker
from weakincentives.runtime.worker.handler import with_job


class Shop:
    def sell(self, body, job):
        return body, job

    def count(self, body):
        return body

    def __call__(self, body, context):
        return body, context

    @staticmethod
    def look(body, job=None):
        return body, job

    @classmethod
    def ask(cls, body, *, job):
        return body, job


class Plain:
    def __call__(self, body):
        return body


def passing(function):
    @wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def supplying(function):
    @wraps(function)
    def wrapper(body):
        return function(body, "own")

    return wrapper


def both(body, job):
    return body, job


async def both_async(body, job):
    return body, job


def three(client, body, job):
    return body, job


@pytest.mark.parametrize(
    "handler",
    [
        both,
        lambda body, anything: (body, anything),
        lambda body, job=None: (body, job),
        lambda body, retries=3, job=None: (body, job),
        lambda body, /, job: (body, job),
        lambda body, *, job: (body, job),
        lambda body, *rest, job: (body, job),
        Shop().sell,
        Shop(),
        Shop.look,
        Shop.ask,
        passing(both),
        passing(passing(both)),
        partial(three, "client"),
        partial(both),
        partial(passing(three), "client"),
    ],
)
def test_who_gets_a_job(handler):
    call = with_job(handler)
    assert call is not None
    assert call("tea", "the job") == ("tea", "the job")


def test_an_async_handler_gets_one_too():
    assert with_job(both_async) is both_async


@pytest.mark.parametrize(
    "handler",
    [
        lambda body: body,
        lambda job: job,  # that is the body
        lambda body, retries=3: body,
        lambda *anything: anything,
        lambda body, **options: body,
        Shop().count,
        Plain(),
        supplying(both),
        partial(both, job="own"),
        partial(both, "own"),
        passing(lambda body: body),
        str,
        print,
        [].append,
        Mock(),
    ],
)
def test_who_gets_only_the_body(handler):
    assert with_job(handler) is None


@pytest.mark.parametrize(
    "handler", [lambda: None, three, lambda body, *, client: None, partial(both, 1, 2)]
)
def test_a_handler_that_could_never_be_called_is_refused(handler):
    with pytest.raises(InvalidParameterError, match="a body, or of a body and a job"):
        Worker(InMemoryMailbox("jobs"), handler)
