"""Servers that tests start for themselves."""

from .cluster import Cluster
from .redis import Server, ServerError, Standalone, servers_available, supports_tls
from .sentinel import SentinelTrio
from .waiting import eventually

__all__ = [
    "Cluster",
    "SentinelTrio",
    "Server",
    "ServerError",
    "Standalone",
    "eventually",
    "servers_available",
    "supports_tls",
]
