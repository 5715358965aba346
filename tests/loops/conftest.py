"""Servers for the loops' tests."""

from tests.services import redis_url

__all__ = ["redis_url"]
