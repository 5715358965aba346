"""Extends the leases of messages while they are handled."""
