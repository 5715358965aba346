"""The name by which this process is known to others."""

import os
import socket

__all__ = ["process_name"]


def process_name() -> str:
    """Return the host name and the process id."""
    return f"{socket.gethostname()}:{os.getpid()}"
