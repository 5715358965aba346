"""The options of ``wink worker`` that turn telemetry on."""

import json
import signal
import socket
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import weakincentives
from testkit.waiting import eventually
from weakincentives.cli.app import run

MODULE = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from weakincentives.runtime import Worker

provider = TracerProvider()

def line_of(span):
    return span.to_json(None) + chr(10)

to_file = ConsoleSpanExporter(out=open("spans", "w"), formatter=line_of)
provider.add_span_processor(SimpleSpanProcessor(to_file))
trace.set_tracer_provider(provider)

def make(backend):
    return Worker(backend.mailbox("jobs"), str)
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(textwrap.dedent(MODULE))
    return f"sqlite:///{tmp_path / 'worker.db'}"


def test_metrics_traces_and_events_of_a_real_worker(tmp_path: Path, url: str) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "weakincentives.cli", "worker", "shop:make", "--url", url]
    options = ["--prometheus", "--otel", "--log-events", "--log-json", "--log-level", "debug"]
    with subprocess.Popen(
        [*command, *options, "--health-port", str(port)],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as worker:
        try:
            with weakincentives.connect(url) as backend:
                id = backend.mailbox("jobs").send(
                    "tea", attributes={"traceparent": "00-" + "1" * 32 + "-" + "2" * 16 + "-01"}
                )

            def acknowledged() -> bool:
                page = f"http://127.0.0.1:{port}/metrics"
                with urllib.request.urlopen(page, timeout=5) as got:
                    families = text_string_to_metric_families(got.read().decode())
                return any(
                    sample.name == "wink_messages_acknowledged_total" and sample.value == 1
                    for family in families
                    for sample in family.samples
                )

            eventually(acknowledged, ignoring=(OSError,))
            worker.send_signal(signal.SIGTERM)
            _, log = worker.communicate(timeout=120)
        finally:
            worker.kill()
    records = [json.loads(line) for line in log.splitlines()]
    finished = [one for one in records if one["message"].startswith("job_finished")]
    assert [one["message_id"] for one in finished] == [id]
    spans = [json.loads(line) for line in (tmp_path / "spans").read_text().splitlines()]
    (processed,) = (span for span in spans if span["name"] == "process jobs")
    assert processed["context"]["trace_id"] == "0x" + "1" * 32
    assert not any("no OpenTelemetry provider" in one["message"] for one in records)


def test_metrics_need_a_page(
    tmp_path: Path,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "plain_shop.py").write_text("def make(backend): ...\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert run(["worker", "plain_shop:make", "--url", url, "--prometheus"]) == 2
    assert "--prometheus needs --health-port" in capsys.readouterr().err


def test_it_says_so_if_spans_go_nowhere(tmp_path: Path, url: str) -> None:
    (tmp_path / "plain_shop.py").write_text("def make(backend): raise SystemExit(7)\n")
    done = subprocess.run(
        [*(sys.executable, "-m", "weakincentives.cli", "worker"), "plain_shop:make", "--otel"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "no OpenTelemetry provider is configured" in done.stderr
