import socket
import sys
import threading
import time

import pytest

from testkit.startstop import Service, exercise
from testkit.threads import started_since, threads_now
from testkit.waiting import eventually
from weakincentives.runtime import HealthServer
from weakincentives.runtime.group import health_server as health
from weakincentives.runtime.group.readiness import ProbeReport

from .http import get, raw

LIVE, READY = "/health/live", "/health/ready"


def yes():
    return ProbeReport(True, {"status": "fine"})


def no():
    return ProbeReport(False, {"status": "not ready", "reasons": ["tired"]})


@pytest.fixture
def serve():
    servers = []

    def make(live=yes, ready=yes, **options):
        server = HealthServer(live, ready, **options)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.stop()


def test_it_answers_probes(serve):
    server = serve(ready=no)
    assert get(server.address, LIVE) == (200, {"status": "fine"})
    assert get(server.address, f"{READY}?verbose=1") == (
        503,
        {"status": "not ready", "reasons": ["tired"]},
    )
    assert get(server.address, LIVE, "HEAD") == (200, b"")


def test_it_binds_to_this_machine_only_and_reports_its_port(serve):
    host, port = serve().address
    assert host == "127.0.0.1"
    assert port > 0


def test_ipv6(serve):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("no IPv6 here")
    server = serve(host="::1")
    assert get(server.address, LIVE)[0] == 200


def test_a_port_in_use_is_said_at_once(serve):
    taken = serve().address
    with pytest.raises(OSError, match=f"port {taken[1]}.*choose another port"):
        serve(port=taken[1])


def test_starting_and_stopping_twice_is_fine():
    server = HealthServer(yes, yes)
    server.stop()
    assert server.address is None
    server.start()
    address = server.address
    server.start()
    assert server.address == address
    server.stop()
    server.stop()
    assert server.address is None
    with pytest.raises(OSError):
        get(address, LIVE)
    server.start()
    assert get(server.address, LIVE)[0] == 200
    server.stop()


def test_start_and_stop_in_any_order():
    exercise(
        Service(
            lambda: HealthServer(yes, yes),
            start=lambda server: server.start(),
            stop=lambda server: server.stop(),
            up=lambda server: server.address is not None,
            final=False,
        )
    )


def test_stop_with_clients_in_the_middle_closes_them(serve):
    server = serve()
    with socket.create_connection(server.address, timeout=60) as client:
        client.sendall(b"GET /hea")
        server.stop()
        try:
            assert client.recv(100) == b""
        except ConnectionResetError:
            pass  # what it had sent was not read


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /nothing HTTP/1.1\r\n\r\n", 404),
        (b"POST /health/live HTTP/1.1\r\n\r\n", 405),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /health/live\r\n\r\n", 400),
        (b"GET  /health/live HTTP/1.1\r\n\r\n", 400),
        (b"GET /health/live HTTP/2\r\n\r\n", 400),
        (b"\xff\xfe\x00\x01 / HTTP/1.1\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n\n", 400),  # a TLS hello
        (b"GET http://elsewhere/health/live HTTP/1.1\r\n\r\n", 404),
        (b"GET /health/live/../../etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET /health/live HTTP/1.1\r\nA: " + b"a" * 1_000_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 100_000, 431),
        (b"GET /health/live HTTP/1.0\n\n", 200),
    ],
)
def test_bad_requests_are_refused(serve, request_, status):
    server = serve()
    assert raw(server.address, request_).startswith(f"HTTP/1.1 {status} ".encode())
    assert get(server.address, LIVE)[0] == 200


def test_what_is_left_unsaid_gets_a_400_or_nothing(serve):
    server = serve()
    for said, answer in ((b"", b""), (b"GET /health", b"HTTP/1.1 400 ")):
        with socket.create_connection(server.address, timeout=60) as client:
            client.sendall(said)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(4096)[: len(answer)] == answer


def test_a_request_in_small_pieces_is_understood(serve):
    server = serve()
    pieces = [bytes([byte]) for byte in b"GET /health/live HTTP/1.1\r\n\r\n"]
    assert raw(server.address, *pieces).startswith(b"HTTP/1.1 200 ")


def test_a_client_that_stalls_is_cut_off(serve, monkeypatch):
    monkeypatch.setattr(health, "CLIENT_TIMEOUT", 0.2)
    server = serve()
    with socket.create_connection(server.address, timeout=60) as client:
        client.sendall(b"GET /health/live HTTP/1.1\r\nX: ")
        assert client.recv(100) == b""


def test_many_stalled_clients_neither_block_probes_nor_leave_threads(serve):
    server = serve()
    before = threads_now()
    clients = [socket.create_connection(server.address, timeout=60) for _ in range(200)]
    try:
        for client in clients:
            client.sendall(b"GET /health/live HTTP/1.1\r\nX-Slow: ")
        for _ in range(10):
            began = time.monotonic()
            assert get(server.address, LIVE)[0] == 200
            assert time.monotonic() - began < 10
        assert len(started_since(before)) <= 1
        assert len(server._serving._clients) <= health.MAX_CLIENTS
    finally:
        for client in clients:
            client.close()
    eventually(lambda: not server._serving._clients)


def test_a_flood_is_answered_and_leaves_nothing(serve):
    server = serve()
    before = threads_now()
    answered = []

    def flood():
        for _ in range(100):
            try:
                answered.append(get(server.address, READY)[0])
            except OSError:
                answered.append(0)  # made room for a newer one

    threads = [threading.Thread(target=flood) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answered) == 400
    assert set(answered) == {200}
    eventually(lambda: not started_since(before))
    eventually(lambda: not server._serving._clients)


def test_liveness_is_answered_while_readiness_hangs(serve, monkeypatch):
    monkeypatch.setattr(health, "PROBE_TIMEOUT", 0.2)
    go, calls = threading.Event(), []

    def hang():
        calls.append(1)
        go.wait(30)
        return yes()

    server = serve(ready=hang)
    try:
        for _ in range(3):
            status, body = get(server.address, READY)
            assert status == 503
            assert body["reasons"] == ["/health/ready gave no answer within 0.2 s"]
            assert get(server.address, LIVE)[0] == 200
        assert calls == [1]
    finally:
        go.set()
    eventually(lambda: get(server.address, READY)[0] == 200)


def test_stopping_while_readiness_hangs_waits_for_nobody(serve):
    go, asked = threading.Event(), threading.Event()

    def hang():
        asked.set()
        go.wait(30)
        return yes()

    server = serve(ready=hang)
    client = threading.Thread(target=raw, args=(server.address, b"GET /health/ready HTTP/1.1\n\n"))
    client.start()
    assert asked.wait(120)
    server.stop()
    client.join(60)
    assert not client.is_alive()
    go.set()


@pytest.mark.parametrize("path", [LIVE, READY])
def test_a_probe_that_fails_is_a_500_and_a_log_line(serve, path, caplog):
    def fail():
        raise LookupError("the password is hunter2")

    server = serve(live=fail, ready=fail)
    status, body = get(server.address, path)
    assert status == 500
    assert body["reasons"] == ["failed with LookupError"]
    assert f"{path} failed" in caplog.text


def test_no_thread_left_for_a_probe(serve, monkeypatch):
    server = serve()

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("weakincentives.runtime.group.health_server.threading.Thread.start", refuse)
        assert get(server.address, READY)[0] == 503
    assert get(server.address, READY)[0] == 200


def test_no_file_descriptor_left_is_survived(serve, monkeypatch, caplog):
    monkeypatch.setattr(health, "ACCEPT_RETRY", 0.01)
    server = serve()

    class Exhausted:
        """The listener, with one accept that fails."""

        def __init__(self, listener):
            self.fileno, self.close = listener.fileno, listener.close
            self.real, self.failed = listener, False

        def accept(self):
            if self.failed:
                return self.real.accept()
            self.failed = True
            raise OSError(24, "Too many open files")

    exhausted = server._serving._listener = Exhausted(server._serving._listener)
    assert get(server.address, LIVE)[0] == 200
    assert exhausted.failed
    assert "cannot accept" in caplog.text


def test_metrics_without_prometheus_give_a_hint(serve, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    status, body = get(serve().address, "/metrics")
    assert status == 404
    assert "prometheus-client" in body["reasons"][0]


def test_metrics_of_prometheus(serve):
    prometheus_client = pytest.importorskip("prometheus_client")
    counter = prometheus_client.Counter("health_test_turns", "Turns.")
    counter.inc(3)
    try:
        status, body = get(serve().address, "/metrics")
    finally:
        prometheus_client.REGISTRY.unregister(counter)
    assert status == 200
    assert b"health_test_turns_total 3.0" in body


def test_no_access_log(serve, caplog, capfd):
    caplog.set_level("INFO")
    get(serve().address, LIVE)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")
