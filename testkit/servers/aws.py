"""Emulators of AWS, each in a virtual environment of its own, one process for a whole test run."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testkit.locks import alone

REGION = "eu-west-1"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
"""The credentials that an emulator takes, where boto3 looks for them."""
START_WITHIN = 120.0


class Unavailable(Exception):
    """A server cannot be had here."""


@dataclass(frozen=True)
class Emulator:
    """A package that serves AWS's APIs, and how it is started."""

    name: str
    requirement: str

    def command(self, binaries: Path, port: int) -> list[str]:
        if self.name == "moto":
            return [str(binaries / "moto_server"), "-H", "127.0.0.1", "-p", str(port)]
        return [str(binaries / "ministack")]

    def environment(self, port: int, scratch: Path) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            **ENVIRONMENT,
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "MINISTACK_HOST": "127.0.0.1",
            "SERVICES": "sqs,dynamodb,sts,iam",
            "LOG_LEVEL": "WARNING",
        }


MINISTACK = Emulator("ministack", "ministack==1.5.33")
MOTO = Emulator("moto", "moto[server]==5.2.5")


@contextmanager
def running(emulator: Emulator, shared: Path) -> Iterator[str]:
    """Serve to every process of a test run; the last one to leave stops the server by its pid."""
    state = shared / f"{emulator.name}.json"
    with alone(shared / f"{emulator.name}.lock"):
        known = json.loads(state.read_text()) if state.exists() else start(emulator, shared)
        state.write_text(json.dumps(known | {"users": known["users"] + 1}))
    try:
        yield f"http://127.0.0.1:{known['port']}"
    finally:
        with alone(shared / f"{emulator.name}.lock"):
            known = json.loads(state.read_text())
            users = known["users"] - 1
            state.write_text(json.dumps(known | {"users": users}))
            if users == 0:
                state.unlink()
                stop(known["pid"])


def start(emulator: Emulator, shared: Path) -> dict[str, int]:
    """Start the server and wait until it answers."""
    binaries = installed(emulator) / "bin"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = shared / f"{emulator.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            emulator.command(binaries, port),
            env=emulator.environment(port, shared),
            cwd=shared,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_WITHIN
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5).close()
        except urllib.error.HTTPError:
            pass
        except OSError:
            time.sleep(0.1)
            continue
        process.returncode = 0  # whoever leaves last stops it: this object has no say any more
        return {"pid": process.pid, "port": port, "users": 0}
    process.kill()
    raise Unavailable(f"{emulator.name} did not start: {log.read_text()[-2000:]}")


def stop(pid: int) -> None:
    """End a server that this test run started, and wait for it."""
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
        except ChildProcessError:  # another worker's child: init reaps it
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
        time.sleep(0.05)
    os.kill(pid, signal.SIGKILL)


def installed(emulator: Emulator) -> Path:
    """Return the environment that has the emulator, made once and kept in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weakincentives"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    home = cache / f"{emulator.requirement}-py{version}".replace("[", "-").replace("]", "")
    cache.mkdir(parents=True, exist_ok=True)
    with alone(cache / f"{home.name}.lock"):
        if not (home / "ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            try:
                command(sys.executable, "-m", "venv", str(home))
                command(str(home / "bin" / "pip"), "install", "--quiet", emulator.requirement)
            except (OSError, subprocess.SubprocessError) as error:
                raise Unavailable(f"{emulator.requirement} cannot be installed: {error}") from error
            (home / "ready").touch()
    return home


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=300)
