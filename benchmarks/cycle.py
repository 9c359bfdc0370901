"""Scheduling cycles against PostgreSQL, phase by phase: one that places what fits and explains the rest, then cycles
that have nothing to do, and cycles before each of which one job arrived. By default `--pending 10000 --nodes 200
--gpus 1`, of which 1,600 start; `--gpus 0` mixes jobs of 1 to 8 GPUs."""

import gc
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from benchmarks.report import arguments, percentile, publish
from gpusched.lib.db import embedded

GPUS = 8
SHAPES = ((1, 40_000), (1, 80_000), (2, 80_000), (4, 80_000), (8, 80_000))


def main() -> None:
    options = arguments(__doc__ or "", pending=10_000, nodes=200, repeat=10, gpus=1)
    with database():
        _fill(options.pending, options.nodes, options.gpus)
        first, placed = _cycle()
        later = [_cycle()[0] for _ in range(options.repeat)]
        arrival = [_cycle_after_arrival(options.gpus) for _ in range(options.repeat)]
        figures = {f"first_{phase}_ms": ms for phase, ms in first.items()}
        figures["first_total_ms"] = sum(first.values())
        figures |= {f"later_{phase}_ms": percentile([ms[phase] for ms in later], 50) for phase in first}
        figures |= {f"arrival_{phase}_ms": percentile([ms[phase] for ms in arrival], 50) for phase in first}
        publish({"placed": placed, **figures, "pending": options.pending, "nodes": options.nodes}, options.json)


@contextmanager
def database() -> Iterator[None]:
    """Django on an empty migrated database of its own, as durable as the product's."""
    directory = Path(tempfile.mkdtemp(prefix="gpusched-cycle-"))
    directory.chmod(0o755)
    server = embedded.Server(directory)
    server.start()
    try:
        os.environ |= {"GPUSCHED_DATABASE_URL": server.url(), "DJANGO_SETTINGS_MODULE": "gpusched.settings"}
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        call_command("migrate", verbosity=0)
        yield
        connections.close_all()
    finally:
        server.remove()


def _fill(pending: int, nodes: int, gpus: int) -> None:
    from django.contrib.auth.models import User
    from django.utils import timezone

    from nodes.models import Device, Node
    from tenants.tenancy.tenants import create_tenant

    now = timezone.now()
    nodes_made = Node.objects.bulk_create(
        Node(
            name=f"node-{n}", node_key=f"key-{n}", credential_prefix=f"{n}", credential_hash="", state="online",
            cpu_cores=128, memory_mb=1_048_576, joined_at=now, last_seen_at=now,
        )
        for n in range(nodes)
    )  # fmt: skip
    Device.objects.bulk_create(
        Device(node=node, uuid=f"GPU-{node.name}-{i}", index=i, model="NVIDIA A100-SXM4-80GB", memory_mb=81_920)
        for node in nodes_made
        for i in range(GPUS)
    )
    User.objects.create_user("user")
    for n in range(10):
        create_tenant({"name": f"team-{n}"}, actor="benchmark")
    _submit(pending, gpus)


def _submit(number: int, gpus: int) -> None:
    from django.contrib.auth.models import User
    from django.utils import timezone

    from jobs.models import Job
    from tenants.models import Tenant

    user, tenants = User.objects.get(username="user"), list(Tenant.objects.filter(name__startswith="team-"))
    Job.objects.bulk_create(
        Job(
            tenant=tenants[n % 10], user=user, name="train", priority=500, gpu_count=gpus or SHAPES[n % 5][0],
            gpu_memory_mb=SHAPES[n % 5][1], cpu_milli=4000, memory_mb=16_000, max_runtime_seconds=3600,
            payload={"command": ["true"]}, reason="scheduler_behind", submitted_at=timezone.now(),
        )
        for n in range(number)
    )  # fmt: skip


def _cycle_after_arrival(gpus: int) -> dict[str, float]:
    _submit(1, gpus)
    return _cycle()[0]


def _cycle() -> tuple[dict[str, float], int]:
    """Run a cycle; return the milliseconds of each phase, and how many jobs were placed."""
    from nodes.ranks.recovery import mark_silent_nodes_lost
    from scheduling.cycle.commit import commit
    from scheduling.cycle.snapshot import load
    from scheduling.engine.planner import plan

    gc.disable()  # as in the worker's cycles
    times = [time.perf_counter()]
    mark_silent_nodes_lost()
    times.append(time.perf_counter())
    snapshot, basis = load()
    times.append(time.perf_counter())
    decided = plan(snapshot, basis.policy, basis.now)
    times.append(time.perf_counter())
    committed = commit(decided, snapshot, basis)
    times.append(time.perf_counter())
    gc.enable()
    ms = [(end - start) * 1000 for start, end in pairwise(times)]
    return dict(zip(("sweep", "snapshot", "plan", "commit"), ms, strict=True)), committed.placed


if __name__ == "__main__":
    main()
