"""Child processes that never outlive this one."""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

# The shell waits for a line before it becomes the server, so that the reaper knows the pid before
# there is a server to leak; if this process dies first, `read` meets end of file and nothing runs.
_EXEC_WHEN_TOLD = 'read -r _ && exec "$@" </dev/null'


class Reaper:
    """The other end of reaper.py, started with the first process it has to watch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, pid: int) -> None:
        self._tell(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        self._tell(f"-{pid}\n")

    def close(self) -> None:
        """Have everything still watched killed, and wait until it has been."""
        with self._lock:
            if self._process is not None:
                _pipe(self._process).close()
                self._process.wait()
                self._process = None

    def abandon(self) -> None:
        """In a forked child: let go of a pipe that must reach its end when the parent dies."""
        self._lock = threading.Lock()
        if self._process is not None:
            _pipe(self._process).close()
            # Not this process's child, so there is nothing to wait for or to warn about.
            self._process.returncode = 0
            self._process = None

    def _tell(self, message: str) -> None:
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(Path(__file__).with_name("reaper.py"))],
                    stdin=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
            _pipe(self._process).write(message.encode())


def _pipe(process: subprocess.Popen[bytes]) -> IO[bytes]:
    assert process.stdin is not None
    return process.stdin


reaper = Reaper()
atexit.register(reaper.close)
os.register_at_fork(after_in_child=reaper.abandon)


class Process:
    """A command in a session of its own, so that Ctrl-C in the terminal reaches only the tests."""

    def __init__(self, command: Sequence[str | Path], directory: Path, log: Path) -> None:
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                ["/bin/sh", "-c", _EXEC_WHEN_TOLD, "sh", *command],
                cwd=directory,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watched = True
        try:
            reaper.watch(self.pid)
            with _pipe(self._popen) as pipe:
                pipe.write(b"go\n")
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        if self._popen.poll() is None:
            return True
        self._gone()
        return False

    def kill(self) -> None:
        """SIGKILL, also to what the process has forked, such as to save a snapshot."""
        if self._popen.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
        self._gone()

    def terminate(self, timeout: float) -> None:
        """SIGTERM, then SIGKILL if that was not enough."""
        self._popen.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(timeout)
        self.kill()

    def pause(self) -> None:
        """SIGSTOP, and return once every thread of the process has stopped."""
        self._popen.send_signal(signal.SIGSTOP)
        os.waitpid(self.pid, os.WUNTRACED)

    def resume(self) -> None:
        self._popen.send_signal(signal.SIGCONT)

    def _gone(self) -> None:
        """Wait, after which the pid may become another process's: so have it forgotten, once."""
        self._popen.wait()
        if self._watched:
            self._watched = False
            reaper.forget(self.pid)


def alive(pid: int) -> bool:
    """Whether a process exists and has not ended; for those that others started as well."""
    try:
        os.kill(pid, 0)
        # Ended, an orphan may stay as a zombie for as long as init does not collect it.
        return sys.platform != "linux" or _state(pid) != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
