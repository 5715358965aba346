"""Durable, typed mailboxes with SQS semantics for Python, and the loops that serve them."""

__version__ = "0.1.0"
