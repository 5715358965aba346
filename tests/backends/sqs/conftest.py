"""The emulators that tests of SQS run on."""

from typing import Any

import pytest

FAULTS = {
    ("fauxqs", "test_queues_are_listed_page_by_page"): "lists one page of queues",
    ("fauxqs", "test_a_group_has_one_holder_although_a_receive_was_cancelled"): (
        "hands out one message of a group at a time, so that there is nothing to split"
    ),
}
"""Where an emulator is not like AWS; the day such a test passes, this table is wrong."""


@pytest.fixture(
    params=[
        "ministack",
        "moto",
        pytest.param("localstack", marks=pytest.mark.full),
        pytest.param("fauxqs", marks=pytest.mark.full),
    ]
)
def cloud(request: pytest.FixtureRequest) -> Any:
    """Each emulator in turn, two of them only in the full run."""
    fault = FAULTS.get((request.param, request.function.__name__))
    if fault is not None:
        request.applymarker(pytest.mark.xfail(reason=f"{request.param} {fault}", strict=True))
    return request.getfixturevalue(request.param)
