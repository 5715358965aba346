"""What every test may rely on, however the run was started."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest

from tests.services import (
    binary,
    dynalite_endpoint,
    fauxqs,
    fauxqs_endpoint,
    localstack,
    localstack_endpoint,
    ministack,
    ministack_endpoint,
    moto,
    moto_endpoint,
    run_directory,
    shared_cluster,
    shared_fauxqs,
    shared_localstack,
    shared_ministack,
    shared_moto,
    shared_server,
    shared_trio,
)

__all__ = [
    "binary",
    "dynalite_endpoint",
    "fauxqs",
    "fauxqs_endpoint",
    "localstack",
    "localstack_endpoint",
    "ministack",
    "ministack_endpoint",
    "moto",
    "moto_endpoint",
    "run_directory",
    "shared_cluster",
    "shared_fauxqs",
    "shared_localstack",
    "shared_ministack",
    "shared_moto",
    "shared_server",
    "shared_trio",
]

# How long an example takes says more about the machine than about the code.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_is_not_ignored() -> None:
    """A shell ignores SIGINT in what it starts with ``&``, and children inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Let no collection of garbage, now or in a test, walk over all that was collected."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, obj: object) -> list[pytest.Item] | None:
    """Collect no big matrix only to leave it out: every worker would, and there are thousands."""
    left_out = collector.config.option.markexpr == "not full"
    marks = getattr(obj, "pytestmark", ()) if left_out else ()
    return [] if any(mark.name == "full" for mark in marks) else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread slow tests over all processes and over the first half of the run.

    Begun last, one would keep everybody waiting; begun all at once, they starve each other. With
    ``--dist worksteal`` each process takes an equal part of the list, from its beginning.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    quick = [item for item in items if not item.get_closest_marker("slow")]
    items[:] = []
    for number in range(processes):
        first, last = (len(quick) * n // processes for n in (number, number + 1))
        items += _spread(slow[number::processes], quick[first:last])


def _spread(slow: list[pytest.Item], quick: list[pytest.Item]) -> list[pytest.Item]:
    """Put a slow test before each of the first rows of quick ones."""
    row = len(quick) // (2 * len(slow) or 1)
    spread = []
    for number, item in enumerate(slow):
        spread += [item, *quick[number * row : (number + 1) * row]]
    return spread + quick[len(slow) * row :]
