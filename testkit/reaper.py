"""Run as a script: kill the processes named on stdin once whoever names them is gone.

"+pid" watches a process and the group it leads; "-pid" forgets it. End of file means that the other
end exited, in whatever way, so this needs neither prctl (which fires when a mere thread exits) nor
a hook (which kill -9 skips).
"""

import contextlib
import os
import signal
import sys


def main() -> None:
    watched: set[int] = set()
    for line in sys.stdin:
        pid = int(line[1:])
        if line.startswith("+"):
            watched.add(pid)
        else:
            watched.discard(pid)
    for pid in watched:
        # macOS does not permit it when all that is left of the group is a zombie.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
