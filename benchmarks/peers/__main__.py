"""Sends a load or serves it, in a process of its own.

It is run by the Python of the peer's environment, which does not have this library:
``python -m benchmarks.peers MODULE:CLASS send|serve URL COUNT SECONDS CONCURRENCY LEASE``.
"""

import importlib
import sys

from benchmarks.peers.peer import Load, Peer


def main() -> None:
    name, half, url, count, seconds, concurrency, lease = sys.argv[1:]
    module, _, kind = name.partition(":")
    peer: Peer = getattr(importlib.import_module(f"benchmarks.peers.{module}"), kind)()
    load = Load(int(count), float(seconds), int(concurrency), float(lease))
    (peer.send if half == "send" else peer.serve)(url, load)


if __name__ == "__main__":
    main()
