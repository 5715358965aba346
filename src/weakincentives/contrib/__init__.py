"""Implementations on top of other services."""
