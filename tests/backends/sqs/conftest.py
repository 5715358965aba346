"""The emulators that tests of SQS run on."""

from typing import Any

import pytest


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
    return request.getfixturevalue(request.param)
