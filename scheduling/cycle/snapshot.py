"""Load the engine's snapshot: everything it needs from the database, read at one moment."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from django.db import connection

from gpusched.lib.db.sql import execute, prepared_rows, retry_atomic
from nodes.health import missing_users
from scheduling.cycle import array_heads as arrays
from scheduling.cycle.array_heads import ArrayView, OpenArray
from scheduling.cycle.eras import SERVER_SQL, era_of
from scheduling.cycle.free_nodes import nodes
from scheduling.cycle.pending_jobs import PendingJob, jobs_by_id, pending_jobs
from scheduling.cycle.preemptions import load_nominations
from scheduling.cycle.request_shapes import recent_mix
from scheduling.cycle.running_jobs import running
from scheduling.cycle.tenants import load_tenants
from scheduling.engine.model import (
    Job,
    Node,
    PendingGroup,
    Policy,
    Request,
    Snapshot,
)
from scheduling.history.current import with_predictions
from scheduling.policy import policy
from scheduling.reservations.bookings import load_bookings, mark_inside


def require_unix_users(snapshot: Snapshot) -> Snapshot:
    """Add labels for Unix users that some nodes lack, and require them of their tenants' jobs. Users cannot set labels
    with spaces; reasons show them as they are: no node matches Unix user alice."""
    if not (lacks := missing_users.current()):
        return snapshot
    labels = {tenant: _label(user) for _, tenant, user in lacks}
    lacking = {(node, _label(user)) for node, _, user in lacks}
    jobs = tuple(
        replace(job, request=_requiring(job.request, labels[job.tenant_id])) if job.tenant_id in labels else job
        for job in snapshot.jobs
    )
    nodes = tuple(
        replace(node, labels={**node.labels, **_present_labels(node.id, labels.values(), lacking)})
        for node in snapshot.nodes
    )
    return replace(snapshot, jobs=jobs, nodes=nodes)


def require_unix_user(job: Job) -> Job:
    """Return a job that is not in a snapshot with what `require_unix_users` requires of those that are."""
    labels = {tenant: _label(user) for _, tenant, user in missing_users.current()}
    return replace(job, request=_requiring(job.request, labels[job.tenant_id])) if job.tenant_id in labels else job


def _label(user: str) -> str:
    return f"Unix user {user}" if user else "a Unix user for tenants without unix_user"


def _present_labels(node: int, labels: Iterable[str], lacking: set[tuple[int, str]]) -> dict[str, str]:
    return {label: "yes" for label in labels if (node, label) not in lacking}


@lru_cache(4096)
def _requiring(request: Request, label: str) -> Request:
    return replace(request, node_selector=tuple(sorted((*request.node_selector, (label, "yes")))))


# With more pending jobs than this, a plan takes long, and explanations only use the plan itself.
MAX_ASKED_ABOUT = 20_000


class CommitBasis:
    """The policy at the time of the snapshot, and the data that the commit compares with: `waiting`, by ids of jobs and
    arrays, and `arrays`. `pending_groups`: reasons found before planning. `evidence_is_due`: rewrite reasons whose
    evidence alone changed."""

    __slots__ = ("arrays", "evidence_is_due", "now", "pending_groups", "policy", "waiting")

    def __init__(self, now: float, waiting: dict[int, PendingJob], policy: Policy, arrays: Sequence[OpenArray]) -> None:
        self.now = now
        self.waiting = waiting
        self.policy = policy
        self.arrays = arrays
        self.pending_groups: tuple[PendingGroup, ...] = ()
        self.evidence_is_due = True


def load(*, is_whole: bool = False, released: Sequence[int] = ()) -> tuple[Snapshot, CommitBasis]:
    """Load a consistent snapshot: all queries see the same moment, which is also the plan's `now`. In a transaction of
    the caller they see what is committed between them, and a job that starts meanwhile counts as running.

    `is_whole`: load the cluster even without pending jobs, and as many array elements as explanations cover.
    `released`: jobs to include as if they were not held and had no dependencies."""
    is_own_transaction = not connection.in_atomic_block
    snapshot, basis = retry_atomic(lambda: _load(is_whole, released, is_own_transaction))
    return require_unix_users(snapshot), basis


def _load(is_whole: bool, released: Sequence[int], is_own_transaction: bool) -> tuple[Snapshot, CommitBasis]:
    if is_own_transaction:
        execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    [(now, server)] = prepared_rows(f"SELECT extract(epoch FROM now())::float8, {SERVER_SQL}")
    era = era_of(server)
    waiting = pending_jobs(era)
    opened = arrays.load_open_arrays()
    heads = {pending.job.id: pending for pending in jobs_by_id([array.id for array in opened if array.waiting])}
    basis = CommitBasis(now, {**waiting, **heads} if heads else waiting, policy(), opened)
    if not (basis.waiting or is_whole):
        # No job is pending, so nothing else is needed; the commit drops claims that are left.
        return Snapshot((), (), (), (), claims=load_nominations()), basis
    bookings = load_bookings()
    live = mark_inside(running(era), bookings)
    if not is_own_transaction:
        # Each query sees another moment, so a job that started between two of them waits and runs.
        started = {job.job_id for job in live}
        waiting = {id: pending for id, pending in waiting.items() if id not in started}
    free_nodes = nodes(era, live)
    view = _array_view(opened, waiting, heads, now, None if is_whole else free_nodes)
    basis.pending_groups = view.pending_groups
    jobs = (*[pending.job for id, pending in waiting.items() if id not in view.hidden], *view.jobs)
    pending_ids = {job.id for job in jobs} if released else set()
    promised = _promised()
    snapshot = Snapshot(
        jobs=(*jobs, *[pending.job for pending in jobs_by_id([id for id in released if id not in pending_ids])]),
        running=live,
        nodes=free_nodes,
        tenants=load_tenants(basis.policy),
        reserved_job_id=promised and view.first.get(promised, promised),
        claims=load_nominations(),
        mix=recent_mix(),
        behind=view.hidden_counts,
        bookings=bookings,
    )
    return with_predictions(snapshot, now), basis


def _array_view(
    opened: Sequence[OpenArray],
    waiting: dict[int, PendingJob],
    heads: dict[int, PendingJob],
    now: float,
    free_nodes: Sequence[Node] | None,
) -> ArrayView:
    """Return the array elements for the engine. `free_nodes`: nodes to start on; None: all that explanations cover."""
    retried: dict[int, list[Job]] = {}
    for pending in waiting.values() if opened else ():
        if pending.array_id is not None:
            retried.setdefault(pending.array_id, []).append(pending.job)
    number = max(len(heads), 1)
    each = MAX_ASKED_ABOUT // number + 1 if free_nodes is None else max(arrays.MAX_SHOWN // number, arrays.MIN_SHOWN)
    jobs = {id: pending.job for id, pending in heads.items()}
    return arrays.represent(opened, jobs, retried, now, arrays.elements_worth_planning(free_nodes, each))


def _promised() -> int | None:
    """Return the job to which the previous cycle, of whichever worker, promised devices."""
    last = prepared_rows("SELECT reserved_job_id FROM scheduling_cycle ORDER BY id DESC LIMIT 1")
    return last[0][0] if last else None
