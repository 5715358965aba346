"""Each rule about who may ask for what."""

from collections.abc import Callable

import pytest

from tests.dashboard.conftest import BASE, TOKEN, Asking, TestClient
from weakincentives.dashboard import Dashboard, DashboardConfig, Right
from weakincentives.dashboard.security import COOKIE, cookie_for, refusal_of
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.seam.backend import Backend

CONFIG = DashboardConfig(token=TOKEN)
KNOWN = {"host": "localhost:8400", "cookie": f"{COOKIE}={cookie_for(TOKEN)}"}
PROGRAM = {"host": "localhost:8400", "authorization": f"Bearer {TOKEN}"}


def status(method: str, path: str = "/", config: DashboardConfig = CONFIG, **headers: str) -> int:
    asked = {name.replace("_", "-"): value for name, value in headers.items()}
    refusal = refusal_of(config, method, path, asked)
    return 200 if refusal is None else refusal.status


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8400", "localhost.evil.example", "", "[::2]:8400"]
)
def test_a_host_name_that_was_made_to_point_here_is_refused(host: str) -> None:
    assert status("GET", **(KNOWN | {"host": host})) == 421
    assert status("GET", "/static/dashboard.js", host=host) == 421


@pytest.mark.parametrize("host", ["localhost:1", "LOCALHOST", "127.0.0.1:8400", "[::1]:8400"])
def test_names_of_this_machine_are_served(host: str) -> None:
    assert status("GET", **(KNOWN | {"host": host})) == 200


def test_a_proxy_s_name_is_served_if_it_was_allowed() -> None:
    config = DashboardConfig(token=TOKEN, hosts=("wink.example",))
    assert status("GET", config=config, **(KNOWN | {"host": "wink.example"})) == 200
    assert status("GET", config=config, **KNOWN) == 421


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "http://localhost:9999"},
        {"origin": "null"},
        {},
        {"origin": BASE, "sec_fetch_site": "cross-site"},
    ],
    ids=["another site", "another port", "hidden", "none", "cross-site"],
)
def test_a_post_from_another_site_is_refused(headers: dict[str, str]) -> None:
    assert status("POST", **KNOWN, **headers) == 403


def test_a_post_of_the_page_itself_is_served() -> None:
    assert status("POST", **KNOWN, origin=BASE) == 200
    assert status("POST", **KNOWN, origin=BASE, sec_fetch_site="same-origin") == 200


def test_a_program_with_the_token_needs_no_origin_but_may_not_have_another() -> None:
    assert status("POST", **PROGRAM) == 200
    assert status("POST", **PROGRAM, origin="https://evil.example") == 403


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer wrong"},
        {"authorization": "Bearer "},
        {"cookie": f"{COOKIE}=wrong"},
        {"cookie": f"{COOKIE}={TOKEN}"},
        {"cookie": "\x00;=;;"},
        {"cookie": KNOWN["cookie"], "authorization": "Bearer wrong"},
    ],
)
def test_nothing_is_shown_or_done_without_the_token(headers: dict[str, str]) -> None:
    for path in ("/", "/events", "/queues/orders"):
        assert status("GET", path, host="localhost", **headers) == 401
    assert status("POST", host="localhost:8400", origin=BASE, **headers) == 401


def test_rights_that_change_something_need_a_token() -> None:
    with pytest.raises(InvalidParameterError, match="discard"):
        DashboardConfig(rights=frozenset({Right.DISCARD}))
    with pytest.raises(InvalidParameterError, match="at least 16"):
        DashboardConfig(token="short")


def test_a_browser_is_sent_to_the_login_and_a_program_is_told(backend: Backend) -> None:
    with Dashboard(backend, CONFIG) as dashboard:
        client = TestClient(dashboard, base_url=BASE)
        browser = client.get("/", headers={"Accept": "text/html"}, follow_redirects=False)
        assert (browser.status_code, browser.headers["location"]) == (303, "/login")
        program = client.get("/", headers={"Accept": "application/json"})
        assert (program.status_code, program.json()) == (
            401,
            {"error": "this needs the token of the dashboard"},
        )
        wrong = client.post("/login", data={"token": "wrong"}, headers={"Origin": BASE})
        assert wrong.status_code == 401
        assert COOKIE not in client.cookies


def test_the_cookie_is_for_this_site_alone_and_is_not_the_token(
    asking: Callable[..., Asking],
) -> None:
    answer = asking().post("/login", token=TOKEN)
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert "Path=/" in cookie


@pytest.mark.parametrize("path", ["/", "/static/dashboard.js", "/login", "/nowhere"])
def test_every_response_has_a_strict_policy(asking: Callable[..., Asking], path: str) -> None:
    headers = asking().client.get(path).headers
    policy = headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"


def test_a_form_that_is_too_large_is_refused(asking: Callable[..., Asking]) -> None:
    answer = asking().post("/login", token="x" * (5 * 1024 * 1024))
    assert answer.status_code in (400, 413)
