"""Servers for the tests of what strangers send."""

from tests.services import redis_url

__all__ = ["redis_url"]
