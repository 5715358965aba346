"""A dashboard over a backend in memory, asked as a browser or a program would."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from weakincentives import connect
from weakincentives.dashboard import Dashboard, DashboardConfig, Right
from weakincentives.runtime.mailbox.seam.backend import Backend

with warnings.catch_warnings():
    # Newer versions of Starlette would rather have a package that older ones do not know.
    warnings.simplefilter("ignore")
    from starlette.testclient import TestClient

TOKEN = "a token that nobody guesses"
BASE = "http://localhost:8400"
ALL = frozenset(Right)


@pytest.fixture
def backend() -> Iterator[Backend]:
    with connect("memory://") as opened:
        yield opened


class Asking:
    """Asks a dashboard whose survey has seen everything that was sent before."""

    def __init__(self, dashboard: Dashboard, **options: Any) -> None:
        self.dashboard = dashboard
        self.client = TestClient(dashboard, base_url=BASE, **options)

    def look(self) -> None:
        survey = self.dashboard._parts.survey
        for reading in survey.readings():
            survey.reading(reading.name)
        survey.round()

    def html(self, path: str, **options: Any) -> str:
        answer = self.client.get(path, headers={"Accept": "text/html"}, **options)
        assert answer.status_code == 200, answer.text
        return answer.text

    def json(self, path: str) -> Any:
        answer = self.client.get(path, headers={"Accept": "application/json"})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, **form: str) -> Any:
        return self.client.post(path, data=form, headers={"Origin": BASE}, follow_redirects=False)


@pytest.fixture
def asking(backend: Backend) -> Iterator[Callable[..., Asking]]:
    """Make a dashboard; it is logged in, and looks at the queues only when it is told to."""
    with ExitStack() as stack:

        def make(*rights: Right, dispatcher: Any = None, **settings: Any) -> Asking:
            settings = {"token": TOKEN, "rights": frozenset(rights) or ALL, **settings}
            dashboard = Dashboard(backend, DashboardConfig(**settings), dispatcher=dispatcher)
            stack.enter_context(dashboard)
            dashboard._started = True  # no thread: the tests make the rounds
            made = Asking(dashboard)
            made.look()
            assert made.post("/login", token=TOKEN).status_code == 303
            return made

        yield make
