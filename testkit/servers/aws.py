"""Emulators of AWS, each installed apart from the others, one process for a whole test run."""

import json
import os
import re
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
from functools import reduce
from pathlib import Path

from testkit.locks import alone

REGION = "eu-west-1"
ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
"""The credentials that an emulator takes, where boto3 looks for them."""
START_WITHIN = 120.0


class Unavailable(Exception):
    """A server cannot be had here."""


class NoNode(Unavailable):
    """A server that needs Node.js cannot be had here; nothing else of this project needs it."""


@dataclass(frozen=True)
class Emulator:
    """A server of AWS's APIs: the packages that it needs, and how it is started."""

    name: str
    packages: tuple[str, ...]
    command: tuple[str, ...]
    """``{home}`` is where the packages are, ``{port}`` where to listen."""
    needs_node: bool = False

    def words(self, home: Path, port: int) -> list[str]:
        values = {"{home}": str(home), "{port}": str(port)}
        return [reduce(lambda word, at: word.replace(*at), values.items(), w) for w in self.command]

    def environment(self, port: int, scratch: Path) -> dict[str, str]:
        return {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(scratch),
            **ENVIRONMENT,
            "LOG_LEVEL": "WARNING",
            "SERVICES": "sqs,dynamodb,sts,iam",
            # ministack
            "TMPDIR": str(scratch),
            "BIND_HOST": "127.0.0.1",
            "GATEWAY_PORT": str(port),
            "MINISTACK_HOST": "127.0.0.1",
            # LocalStack
            "GATEWAY_LISTEN": f"127.0.0.1:{port}",
            "FILESYSTEM_ROOT": str(scratch / f"{self.name}-files"),
            "DNS_ADDRESS": "0",
            "DISABLE_EVENTS": "1",
            "SKIP_SSL_CERT_DOWNLOAD": "1",
        }


MINISTACK = Emulator("ministack", ("ministack==1.5.33",), ("{home}/bin/ministack",))
MOTO = Emulator(
    "moto",
    ("moto[server]==5.2.5",),
    ("{home}/bin/moto_server", "-H", "127.0.0.1", "-p", "{port}"),
)
LOCALSTACK = Emulator(
    "localstack",
    # The last one that runs without an account, and other packages as old as it expects.
    ("localstack-core[base-runtime]==4.14.0", "cbor2<6", "pyopenssl<26", "service-identity"),
    ("{home}/bin/python", "-m", "localstack.runtime.main"),
)
LOCAL_FAUXQS = """
import { buildApp } from "{home}/node_modules/fauxqs/dist/app.js";
await buildApp({ logger: false }).listen({ port: {port}, host: "127.0.0.1" });
"""
FAUXQS = Emulator(
    "fauxqs",
    ("fauxqs@1.9.2",),
    # Its own command listens to the whole network.
    (
        "node",
        "--input-type=module",
        "--eval",
        LOCAL_FAUXQS,
    ),
    needs_node=True,
)
DYNALITE = Emulator(
    "dynalite",
    ("dynalite@4.0.0",),
    ("node", "{home}/node_modules/dynalite/cli.js", "--host", "127.0.0.1", "--port", "{port}"),
    needs_node=True,
)


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
    home = installed(emulator)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = shared / f"{emulator.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            emulator.words(home, port),
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
    """Return the directory that has the emulator, made once and kept in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weakincentives"
    version = "node" if emulator.needs_node else f"py{sys.version_info[0]}.{sys.version_info[1]}"
    home = cache / re.sub(r"[^\w.=@-]+", "-", f"{'+'.join(emulator.packages)}-{version}")
    cache.mkdir(parents=True, exist_ok=True)
    with alone(cache / f"{home.name}.lock"):
        if not (home / "ready").exists():
            shutil.rmtree(home, ignore_errors=True)
            install(emulator, home)
            (home / "ready").touch()
    return home


def install(emulator: Emulator, home: Path) -> None:
    if emulator.needs_node and shutil.which("npm") is None:
        raise NoNode(f"{emulator.name} needs Node.js and npm")
    try:
        if emulator.needs_node:
            home.mkdir()
            command("npm", "install", "--silent", "--prefix", str(home), *emulator.packages)
        else:
            command(sys.executable, "-m", "venv", str(home))
            command(str(home / "bin" / "pip"), "install", "--quiet", *emulator.packages)
    except (OSError, subprocess.SubprocessError) as error:
        kind = NoNode if emulator.needs_node else Unavailable
        raise kind(f"{emulator.name} cannot be installed: {error}") from error


def command(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=600)
