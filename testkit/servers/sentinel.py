"""A primary with replicas, watched by sentinels."""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError
from redis.sentinel import Sentinel

from testkit.ports import HOST
from testkit.waiting import eventually

from .redis import Server, Startable

_SETTLE_TIMEOUT = 120.0

# Milliseconds, about a fifth to a half of the usual. They cannot be much shorter, since during a
# failover a sentinel asks replicas for INFO once a second, whatever its settings: a replica is no
# candidate when that is older than five pings or three INFO periods, and one just promoted is
# demoted by any sentinel that has not heard why for four publish periods.
_PERIODS = {
    "ping-period": 400,
    "info-period": 500,
    "publish-period": 500,
    "ask-period": 200,
    # How long sentinels refuse to act once the machine has stalled: usually half a minute.
    "tilt-period": 1000,
}


class _SentinelServer(Server):
    """A server in sentinel mode, with its periods shortened at each start: they are not saved."""

    def _launch(self) -> None:
        super()._launch()
        self.command("SENTINEL", "DEBUG", *(word for pair in _PERIODS.items() for word in pair))


class SentinelTrio(Startable):
    """A primary, replicas, and three sentinels that fail over between them.

    ``down_after`` and ``failover_timeout`` are the sentinels' settings, in seconds.
    ``directives`` are configuration lines for the primary and the replicas.
    """

    service_name = "wink"

    def __init__(
        self,
        binary: Path,
        *,
        replicas: int = 2,
        down_after: float = 0.5,
        failover_timeout: float = 2.0,
        directives: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self.binary = binary
        self.nodes: list[Server] = []
        self.sentinel_servers: list[Server] = []
        self._replicas = replicas
        self._down_after = down_after
        self._failover_timeout = failover_timeout
        self._directives = list(directives)

    @property
    def sentinels(self) -> list[tuple[str, int]]:
        """Where the sentinels listen."""
        return [(HOST, server.port) for server in self.sentinel_servers]

    def client(self, **options: Any) -> Redis:
        """Return a client of whichever node is the primary whenever it connects."""
        sentinel = Sentinel(  # type: ignore[no-untyped-call]
            self.sentinels, sentinel_kwargs={"socket_timeout": 1}
        )
        client: Redis = sentinel.master_for(  # type: ignore[no-untyped-call]
            self.service_name, **options
        )
        return client

    def primary(self) -> Server:
        """Return the primary, according to the first sentinel that answers."""
        return self._node(self._addresses()[0])

    def replicas(self) -> list[Server]:
        """Return the nodes other than the primary, running or not."""
        primary = self.primary()
        return [node for node in self.nodes if node is not primary]

    def kill_primary(self) -> Server:
        """SIGKILL the primary and return it, without waiting for the failover."""
        primary = self.primary()
        primary.kill()
        return primary

    def failover(self) -> Server:
        """Have a sentinel swap the primary for a replica; return the new primary once settled."""
        old = self.primary()
        sentinel = self._responsive(self.sentinel_servers)[0]
        # Refused while an earlier failover ends, or while no replica has been heard of lately.
        eventually(
            lambda: sentinel.command("SENTINEL", "FAILOVER", self.service_name),
            _SETTLE_TIMEOUT,
            "a failover to begin",
            ignoring=(ResponseError,),
        )
        return self.wait_for_failover(old)

    def wait_for_failover(self, old: Server, timeout: float = _SETTLE_TIMEOUT) -> Server:
        """Return the primary after ``old``, once the sentinels and replicas all follow it."""
        eventually(
            lambda: self._settled() and self.primary() is not old,
            timeout,
            f"a failover from {old}",
            ignoring=(RedisError,),
        )
        return self.primary()

    def revive(self, server: Server) -> None:
        """Resume or restart a node or sentinel; return once it has its place again."""
        if server.paused:
            server.resume()
        elif not server.running:
            server.restart()
        self.wait_until_settled()

    def wait_until_settled(self, timeout: float = _SETTLE_TIMEOUT) -> None:
        """Wait until everything responsive agrees on the primary, and is linked to it."""
        eventually(self._settled, timeout, "sentinels to settle", ignoring=(RedisError,))

    def _start(self, resources: ExitStack) -> None:
        primary = resources.enter_context(Server(self.binary, self._directives))
        replica_of = [f"replicaof {HOST} {primary.port}", *self._directives]
        self.nodes = [primary] + [
            resources.enter_context(Server(self.binary, replica_of)) for _ in range(self._replicas)
        ]
        # A sentinel asks the primary for its replicas, so they had better be there first.
        eventually(
            lambda: all(_follows(node, primary) for node in self.nodes[1:]),
            _SETTLE_TIMEOUT,
            "replicas to link",
        )
        watch = [
            f"sentinel monitor {self.service_name} {HOST} {primary.port} 2",
            f"sentinel down-after-milliseconds {self.service_name} {self._down_after * 1000:.0f}",
            f"sentinel failover-timeout {self.service_name} {self._failover_timeout * 1000:.0f}",
        ]
        self.sentinel_servers = [
            resources.enter_context(_SentinelServer(self.binary, watch, arguments=["--sentinel"]))
            for _ in range(3)
        ]
        self.wait_until_settled()

    def _settled(self) -> bool:
        ports = set(self._addresses())
        if len(ports) != 1:
            return False
        primary = self._node(ports.pop())
        followers = [node for node in self._responsive(self.nodes) if node is not primary]
        return (
            primary.responsive
            and primary.info("replication")["role"] == "master"
            and all(_follows(node, primary) for node in followers)
            and all(
                self._is_content(sentinel, followers)
                for sentinel in self._responsive(self.sentinel_servers)
            )
        )

    def _is_content(self, sentinel: Server, followers: list[Server]) -> bool:
        """Whether a sentinel has found all the others, and sees nothing amiss or under way."""
        master = _pairs(sentinel.command("SENTINEL", "MASTER", self.service_name))
        if master["flags"] != "master":
            return False
        if int(master["num-other-sentinels"]) != len(self.sentinel_servers) - 1:
            return False
        seen = {
            int(replica["port"]): (replica["flags"], replica["master-link-status"])
            for replica in map(_pairs, sentinel.command("SENTINEL", "REPLICAS", self.service_name))
        }
        return all(seen.get(node.port) == ("slave", "ok") for node in followers)

    def _addresses(self) -> list[int]:
        """The primary's port, as each responsive sentinel has it."""
        return [
            int(sentinel.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service_name)[1])
            for sentinel in self._responsive(self.sentinel_servers)
        ]

    def _node(self, port: int) -> Server:
        return next(node for node in self.nodes if node.port == port)

    @staticmethod
    def _responsive(servers: list[Server]) -> list[Server]:
        return [server for server in servers if server.responsive]


def _follows(node: Server, primary: Server) -> bool:
    """Whether a node is a replica with a link to the primary."""
    replication = node.info("replication")
    return (
        replication["role"] == "slave"
        and replication["master_port"] == str(primary.port)
        and replication["master_link_status"] == "up"
    )


def _pairs(reply: list[str]) -> dict[str, str]:
    """The fields of a reply that has them as name, value, name, value."""
    return dict(zip(reply[::2], reply[1::2], strict=True))
