"""A process that runs a group; the first argument says how it behaves.

Tells its parent what it has reached, a word a line, on standard output.
"""

import faulthandler
import logging
import os
import signal
import sys
import threading
import time

from tests.group.loops import SmallLoop, loop
from weakincentives.runtime import LoopGroup, ShutdownCoordinator
from weakincentives.runtime.group.signals import SAME_SIGNAL_SECONDS
from weakincentives.runtime.mailbox import InMemoryMailbox

faulthandler.dump_traceback_later(60, exit=True)  # never outlives its test by much


def say(word: object) -> None:
    # In one write: two threads may speak at once, and each must get a line of its own.
    os.write(1, f"{word}\n".encode())


class Saying(SmallLoop):
    """Says when it waits for messages, and when it was told to stop."""

    def run(self, **options):
        say("running")
        super().run(**options)

    def shutdown(self, *, timeout=30.0):
        say("told")
        return super().shutdown(timeout=timeout)


def saying(handle=lambda body: None, *bodies):
    mailbox = InMemoryMailbox("jobs")
    for body in bodies:
        mailbox.send(body)
    return Saying(mailbox, handle)


def ready_then_said(group):
    """Say the port of the probes once the group is ready."""

    def look():
        while not group.ready().ok:
            time.sleep(0.005)
        say(group.health_address[1] if group.health_address else "ready")

    threading.Thread(target=look, daemon=True).start()
    return group


def idle():
    ready_then_said(LoopGroup([saying(), loop()])).run(wait_time_seconds=20)
    say("drained")


def signalled_past_the_main_thread():
    """The system hands the signal to a thread that does not hear it for Python."""
    group = LoopGroup([saying()])

    def strike():
        while not group.ready().ok:
            time.sleep(0.005)
        time.sleep(0.2)  # by now the main thread waits, and nothing else will wake it
        say("ready")
        sys.stdin.readline()
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    threading.Thread(target=strike, daemon=True).start()
    group.run(wait_time_seconds=20)
    say("drained")


def signalled_twice_at_once():
    coordinator = ShutdownCoordinator.install()
    signal.raise_signal(signal.SIGTERM)
    signal.raise_signal(signal.SIGTERM)
    LoopGroup([saying()]).run(wait_time_seconds=20)
    coordinator.uninstall()
    say("drained")


def signalled_twice():
    logging.basicConfig(level=logging.INFO)
    coordinator = ShutdownCoordinator.install()
    signal.raise_signal(signal.SIGTERM)
    assert coordinator.wait(120)
    say("first")
    time.sleep(2 * SAME_SIGNAL_SECONDS)  # what comes earlier counts as the same signal
    signal.raise_signal(signal.SIGTERM)
    say("survived")


def signalled_twice_with_a_log_that_hangs():
    class Stuck(logging.Handler):
        def emit(self, record):
            if "again" in record.getMessage():
                threading.Event().wait()

    logging.getLogger("weakincentives.runtime.group.signals").addHandler(Stuck())
    signalled_twice()


def busy():
    """Finishes its job when it is sent a line."""

    def job(body):
        say("working")
        sys.stdin.readline()
        say("finished")

    group = LoopGroup([saying(job, "job")], health_port=0)
    ready_then_said(group).run()
    say("drained" if group.drained else "cut")


def hanging(shutdown_timeout=30.0, **options):
    def job(body):
        say("working")
        threading.Event().wait()

    group = LoopGroup([saying(job, "job")], shutdown_timeout=shutdown_timeout, **options)
    group.run(wait_time_seconds=0.05)
    say("drained" if group.drained else "cut")


def late():
    hanging(shutdown_timeout=0.3)


def watched():
    logging.basicConfig(level=logging.INFO)
    hanging(watchdog_threshold=1.0)


def watched_and_well():
    ready_then_said(LoopGroup([saying()], watchdog_threshold=1.0)).run(wait_time_seconds=0.05)
    say("drained")


def watched_with_a_log_that_hangs():
    class Stuck(logging.Handler):
        def emit(self, record):
            threading.Event().wait()

    sys.modules["weakincentives.runtime.group.watchdog"].REPORT_SECONDS = 0.3
    logging.getLogger("weakincentives.runtime.group.watchdog").addHandler(Stuck())
    hanging(watchdog_threshold=1.0)


def crash():
    def job(body):
        raise LookupError("the job was bad")

    LoopGroup([saying(), loop(job, "job")]).run()


def exits():
    def job(body):
        sys.exit(7)

    LoopGroup([saying(), loop(job, "job")]).run()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
