"""The capabilities that a backend declares."""

from dataclasses import dataclass

__all__ = ["Capabilities"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; the contract suite tests each as declared."""

    ordered: bool = True
    """First deliveries come in the order of sending."""
    idempotent_send: bool = True
    """A repeated ``message_id`` is the same message."""
    remembers_sequels: bool = True
    """The id of a sequel, such as a reply, is remembered until its message is done."""
    purge_forgets_ids: bool = True
    """After ``purge()``, a ``message_id`` can be used for a new message at once."""
    atomic_batches: bool = True
    """``send_batch`` is all or nothing."""
    fenced: bool = True
    """The backend refuses a handle whose lease has run out, judged by its own clock."""
    nack_counts: bool = True
    """``Message.nack_count`` counts nacks; otherwise it is 0."""
    uncounted_releases: bool = True
    """Giving back a message undone, or putting it off, does not count as a failed delivery."""
    delays: bool = True
    """A single message may be delayed."""
    cancels: bool = True
    """A single message can be cancelled: ``mailbox.cancel(message_id)``."""
    lists_workers: bool = True
    """``backend.workers()`` lists the processes that serve the queues."""
    pauses: bool = True
    """A queue can be paused for all consumers: ``backend.pause(name)``."""
    peeks: bool = True
    """``peek()`` and leasing by id work."""
    exact_counts: bool = True
    """``approximate_count()`` and ``stats()`` are exact."""
    long_polls: bool = False
    """The backend itself waits for messages, and each call costs: none is made without a wait."""
