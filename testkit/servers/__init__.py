"""Real servers of Redis, each started by whoever needs it; `aws` has emulators of AWS."""

from .cluster import Cluster
from .redis import Server, ServerError, Standalone, servers_available, supports_tls
from .sentinel import SentinelTrio

__all__ = [
    "Cluster",
    "SentinelTrio",
    "Server",
    "ServerError",
    "Standalone",
    "servers_available",
    "supports_tls",
]
