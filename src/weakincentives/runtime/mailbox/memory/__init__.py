"""Mailboxes that live in this process."""
