"""The dashboard as somebody uses it, in a real browser against a real server."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from testkit.waiting import eventually
from tests.evals.browser import find_browser
from weakincentives import connect
from weakincentives.runtime import DLQPolicy, Worker
from weakincentives.runtime.mailbox.seam.backend import Backend

pytestmark = pytest.mark.slow

TOKEN = "the token of the browser tests"
SECONDS = 60_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('shop')}/shop.db"


@pytest.fixture(scope="module")
def backend(url: str) -> Iterator[Backend]:
    with connect(url) as opened:
        opened.mailbox("orders").send({"item": "tea", "price": 0})
        yield opened


@pytest.fixture(scope="module")
def link(backend: Backend, url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of its own process, and the link that it prints."""
    allow = [word for right in ("send", "replay", "discard") for word in ("--allow", right)]
    history = tmp_path_factory.mktemp("history") / "history.db"
    wink = [sys.executable, "-m", "weakincentives.cli", "dashboard"]
    server = subprocess.Popen(
        [*wink, "--url", url, "--port", "0", "--history", str(history), *allow],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "WINK_DASHBOARD_TOKEN": TOKEN},
    )
    assert server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)
        server.stdout.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = find_browser()
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        opened = running.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, link: str) -> Iterator[Any]:
    """A page that is logged in by the link, and on which nothing may go wrong."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(SECONDS)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else 0)
    page.goto(link)
    page.wait_for_selector("#liveness[data-state=live]")
    yield page
    context.close()
    assert wrong == []


def base(link: str) -> str:
    return link.partition("/login")[0]


def test_a_queue_grows_on_the_screen_and_r_pauses_it(page: Any, backend: Backend) -> None:
    assert "#" not in page.url, "the token does not stay in the address"
    box = backend.mailbox("emails")
    box.send_batch(["mail"] * 3)
    cell = page.locator("tr", has_text="emails").locator("td[data-label=pending]")
    cell.wait_for()
    box.send_batch(["mail"] * 4)
    eventually(lambda: cell.text_content() == "7")
    page.keyboard.press("r")
    assert page.locator("#liveness").text_content() == "paused"
    page.keyboard.press("r")
    box.send("mail")
    eventually(lambda: cell.text_content() == "8")


def test_keys_lead_through_the_pages(page: Any, link: str) -> None:
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_url(f"{base(link)}/letters")
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.wait_for_url(f"{base(link)}/")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    assert page.locator("tr.current").count() == 1
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "find"


def test_a_letter_is_found_edited_and_replayed_and_its_caller_is_answered(
    page: Any, backend: Backend, link: str
) -> None:
    def handle(body: Any) -> Any:
        return 100 // body["price"]

    box = backend.mailbox("orders")
    box.purge()
    policy = DLQPolicy(mailbox=backend.mailbox("orders-dlq"), max_delivery_count=1)
    reply = box.send_expecting_reply({"item": "<b>tea</b>", "price": 0}, reply_timeout=600)
    Worker(box, handle, dlq=policy).run(max_iterations=1, wait_time_seconds=0)

    page.goto(f"{base(link)}/letters")
    page.get_by_role("link", name="orders-dlq").click()
    page.get_by_role("link", name="builtins.ZeroDivisionError").click()
    page.wait_for_url(re.compile("find=fingerprint"))
    page.locator("tr[data-row] a").first.click()
    assert "in handle" in page.locator("main").text_content()
    page.get_by_text("Edit the body and send it again").click()
    area = page.locator("textarea")
    area.fill(area.input_value().replace('"price": 0', '"price": 4'))
    page.get_by_role("button", name="Send it to orders").click()
    page.wait_for_selector("text=No dead letter waits here")

    Worker(box, handle).run(max_iterations=1, wait_time_seconds=0)
    assert reply.wait(timeout=60) == 25


def test_without_the_token_there_is_only_the_login(browser: Any, link: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{base(link)}/queues/orders")
    assert page.url == f"{base(link)}/login"
    answer = context.request.post(
        f"{base(link)}/queues/orders/send", form={"body": "1"}, headers={"Origin": base(link)}
    )
    assert answer.status == 401
    context.close()
