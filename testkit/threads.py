"""Threads that a piece of work started.

Counting all threads before and after does not tell: one that an earlier test left may end in
between.
"""

import threading


def threads_now() -> set[threading.Thread]:
    return set(threading.enumerate())


def started_since(before: set[threading.Thread]) -> set[threading.Thread]:
    """Those that are alive and were not among ``before``."""
    return threads_now() - before
