"""The faults: what breaks, for how long, and what must recover."""

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from gpusched.agent.processes import signal_all
from tests.hosts.cluster import Cluster
from tests.hosts.network import Direction, Host

# Longer than Patroni's ttl; and long enough for what a lost head or worker costs.
LONG, SHORT = (25.0, 40.0), (8.0, 15.0)


@dataclass
class Fault:
    """The fault of a round. `loses`: "database" if it takes PostgreSQL's primary away, "head" for a head, "worker" for
    the worker that leads. `takes_leader`: whether that worker is among what it takes away."""

    name: str
    loses: str
    begin: Callable[[], object]
    end: Callable[[], object]
    seconds: tuple[float, float] = LONG
    takes_leader: bool = False


def faults(cluster: Cluster, chance: random.Random) -> list[Fault]:
    """Return one fault of each kind, for the present primary and the present leader."""
    primary, leader = cluster.primary(), cluster.leader()
    postgres, machine = partial(cluster.postgres_of, primary), partial(cluster.processes_of, primary)
    head, node, member = chance.choice(cluster.heads), chance.choice(cluster.nodes), chance.choice(cluster.etcd)
    has_leader = leader in cluster.services[head.name].pids()
    return [
        Fault("kill the primary", "database", lambda: signal_all(postgres()[:1], signal.SIGKILL), lambda: None),
        Fault(
            "kill the primary and Patroni",
            "database",
            lambda: signal_all(machine(), signal.SIGKILL),
            cluster.services[primary.name].start,
        ),
        _freeze("freeze the primary", postgres),
        _freeze("freeze the host of the primary", machine),
        _cut("cut the primary off", "database", primary),
        _cut("cut what the primary receives", "database", primary, "in"),
        _cut("cut what the primary sends", "database", primary, "out"),
        _cut("cut a member of etcd off", "", member),
        _kill(cluster, "kill a member of etcd", "", member),
        _kill(cluster, "kill a head", "head", head, SHORT, has_leader),
        Fault("kill the leading worker", "worker", lambda: os.kill(leader, signal.SIGKILL), lambda: None, SHORT, True),
        _cut("cut a node off", "", node),
    ]


def _freeze(name: str, processes: Callable[[], list[int]]) -> Fault:
    frozen: list[int] = []

    def stop() -> None:
        frozen.extend(processes())
        signal_all(frozen, signal.SIGSTOP)

    return Fault(name, "database", stop, lambda: signal_all(frozen, signal.SIGCONT))


def _cut(name: str, loses: str, host: Host, direction: Direction = "both") -> Fault:
    return Fault(name, loses, lambda: host.cut(direction), host.mend)


def _kill(
    cluster: Cluster,
    name: str,
    loses: str,
    host: Host,
    seconds: tuple[float, float] = LONG,
    takes_leader: bool = False,
) -> Fault:
    service = cluster.services[host.name]
    return Fault(name, loses, service.kill, service.start, seconds, takes_leader)
