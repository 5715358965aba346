import math
from decimal import Decimal
from functools import partial

import pytest

from weakincentives.runtime.mailbox import InvalidParameterError, Limits
from weakincentives.runtime.mailbox.limits import check_positive
from weakincentives.runtime.mailbox.queue_names import check_name

SQS = Limits(
    max_delay=900, max_visibility=43_200, max_wait=20, max_batch=10, max_bytes=1000, fractions=False
)
NO_NUMBERS = [True, None, "1", math.nan, math.inf, -math.inf, Decimal(1), 1j, [1]]


@pytest.mark.parametrize("value", [0, 1, 0.5, 900, 1e6])
def test_times_within_the_limits_come_back(value: float) -> None:
    limits = Limits()
    assert limits.delay(value) == limits.visibility(value) == value
    assert limits.receive(1, value, value) == (1, value, value)


@pytest.mark.parametrize("value", [*NO_NUMBERS, -1, -0.001, 1e12, 10**400])
def test_other_times_are_refused(value: object) -> None:
    for check in (Limits().delay, Limits().visibility, partial(Limits().receive, 1, 0)):
        with pytest.raises(InvalidParameterError, match="must be a number of seconds from 0 to"):
            check(value)


def test_a_refusal_names_the_argument_the_limit_and_the_value() -> None:
    with pytest.raises(
        InvalidParameterError,
        match="delay_seconds must be a whole number of seconds from 0 to 900, not 901",
    ):
        SQS.delay(901)
    with pytest.raises(InvalidParameterError, match=r"visibility_timeout .* 43200"):
        SQS.visibility(43_201)
    with pytest.raises(InvalidParameterError, match=r"timeout .* 43200"):
        SQS.visibility(43_201, "timeout")
    with pytest.raises(InvalidParameterError, match=r"wait_time_seconds .* 20, not 21"):
        SQS.receive(1, 0, 21)


def test_fractions_are_refused_where_there_are_none() -> None:
    assert SQS.receive(1, 0, 20) == (1, 0, 20)
    with pytest.raises(InvalidParameterError, match=r"whole number of seconds.*not 1\.5"):
        SQS.receive(1, 0, 1.5)


@pytest.mark.parametrize("value", [1, 10])
def test_batches_within_the_limit_come_back(value: int) -> None:
    assert SQS.batch(value) == value


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1, 11, 1.0])
def test_other_batches_are_refused(value: object) -> None:
    with pytest.raises(
        InvalidParameterError, match="max_messages must be a whole number from 1 to 10"
    ):
        SQS.batch(value)


@pytest.mark.parametrize("name", ["a", "A.b_c:d-9", "x" * 80])
def test_good_names(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x" * 81,
        "a b",
        "a/b",
        "../etc",
        "{a}",
        "a\n",
        "a\x00",
        "ä",
        "\u0661",
        "a*",
        None,
        7,
        b"a",
        "?",
    ],
)
def test_bad_names(name: object) -> None:
    with pytest.raises(InvalidParameterError, match="queue must be 1 to 80 characters") as caught:
        check_name(name, "queue")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("value", [1, 0.001, 300.0])
def test_positive_spans(value: float) -> None:
    assert check_positive("ttl", value) == value


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1, 1e12, 10**400])
def test_other_spans_are_refused(value: object) -> None:
    with pytest.raises(InvalidParameterError, match="ttl must be a number of seconds above 0"):
        check_positive("ttl", value)
