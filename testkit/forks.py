"""Work in a forked child."""

import os
import signal
import sys
import traceback
from collections.abc import Callable

__all__ = ["in_fork"]


def in_fork(work: Callable[[], object], *, within: int = 60) -> int:
    """Run in a forked child; return its exit code, negative if it was ended for taking too long."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(within)
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
