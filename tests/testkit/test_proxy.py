"""The proxy does to a connection what it says."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from testkit.ports import HOST
from testkit.proxy import Proxy
from testkit.waiting import eventually


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy before a server that answers each byte by itself, doubled."""
    server = socket.create_server((HOST, 0))

    def serve() -> None:
        while True:
            try:
                link, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=echo, args=(link,), daemon=True).start()

    def echo(link: socket.socket) -> None:
        with link:
            try:
                while data := link.recv(100):
                    heard.append(data)
                    link.sendall(data * 2)
            except OSError:
                pass

    heard: list[bytes] = []
    threading.Thread(target=serve, daemon=True).start()
    with Proxy(server.getsockname()[1]) as proxy:
        proxy.heard = heard  # type: ignore[attr-defined]
        yield proxy
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=5)


def test_it_forwards_and_counts(proxy: Proxy) -> None:
    with dial(proxy) as link:
        link.sendall(b"abc")
        assert link.recv(6, socket.MSG_WAITALL) == b"abcabc"
    assert (proxy.passed("request"), proxy.passed("reply")) == (3, 6)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("at", [0, 1, 5])
def test_a_cut_in_the_reply(proxy: Proxy, at: int, reset: bool) -> None:
    with dial(proxy) as link:
        proxy.cut("reply", at, reset=reset)
        link.sendall(b"abc")
        got = b""
        try:
            while data := link.recv(6):
                got += data
        except ConnectionResetError:
            assert reset
        assert b"abcabc"[:at].startswith(got)
        assert reset or len(got) == at
    assert proxy.heard == [b"abc"]  # type: ignore[attr-defined]
    assert not proxy.armed
    with dial(proxy) as link:  # once only
        link.sendall(b"d")
        assert link.recv(2, socket.MSG_WAITALL) == b"dd"


def test_a_cut_in_the_request(proxy: Proxy) -> None:
    with dial(proxy) as link:
        proxy.cut("request", 2)
        link.sendall(b"abc")
        while link.recv(6):
            pass
    eventually(lambda: b"".join(proxy.heard) == b"ab", within=120)  # type: ignore[attr-defined]


def test_an_answer_is_lost_after_the_server_was_asked(proxy: Proxy) -> None:
    proxy.lose_answer(b"precious")
    with dial(proxy) as link:
        link.sendall(b"ab")
        assert link.recv(4, socket.MSG_WAITALL) == b"abab"
        link.sendall(b"a precious request")
        assert link.recv(1) == b""
    assert proxy.heard == [b"ab", b"a precious request"]  # type: ignore[attr-defined]
    assert proxy.lost == 1
    with dial(proxy) as link:  # once only
        link.sendall(b"precious")
        assert link.recv(16, socket.MSG_WAITALL) == b"precious" * 2


def test_a_black_hole_and_a_delay(proxy: Proxy) -> None:
    with dial(proxy) as link:
        with proxy.black_hole():
            link.sendall(b"abc")
            link.settimeout(0.1)
            with pytest.raises(TimeoutError):
                link.recv(1)
        link.settimeout(5)
        assert link.recv(6, socket.MSG_WAITALL) == b"abcabc"
        proxy.delay = 0.05
        started = time.monotonic()
        link.sendall(b"a")
        assert link.recv(2, socket.MSG_WAITALL) == b"aa"
        assert time.monotonic() - started >= 0.1
