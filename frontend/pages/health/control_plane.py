"""State of the control plane: database, cycles, agents and housekeeping."""

from django.conf import settings

from gpusched import __version__
from gpusched.lib.db.sql import Row, query
from nodes.ranks.agent_clock import TOLERATED_SECONDS
from scheduling.status import cluster

CYCLES = 60

_DATABASE = """
    SELECT pg_database_size(current_database()) / 1048576 AS size_mb, split_part(version(), ' ', 2) AS version,
           (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()) AS connections,
           current_setting('max_connections')::int AS most_connections,
           (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')
                AS waiting,
           (SELECT extract(epoch FROM max(clock_timestamp() - xact_start))::float8 FROM pg_stat_activity
             WHERE datname = current_database() AND pid <> pg_backend_pid()) AS longest_seconds
"""
# The latest recorded cycles: those with results, and one per minute.
_CYCLES = f"""
    SELECT count(*) AS kept, max(started_at) AS latest_at, sum(placed)::int AS placed, sum(preempted)::int AS preempted,
           sum(stale)::int AS stale, percentile_cont(0.5) WITHIN GROUP (ORDER BY ms) AS p50_ms,
           percentile_cont(0.95) WITHIN GROUP (ORDER BY ms) AS p95_ms, max(ms) AS most_ms
      FROM (SELECT *, sweep_ms + snapshot_ms + plan_ms + commit_ms AS ms FROM scheduling_cycles
             ORDER BY id DESC LIMIT {CYCLES}) c
"""
_AGENTS = """
    SELECT name, state, intent, pretend, agent_version, driver_version, last_seen_at, clock_off_seconds,
           extract(epoch FROM clock_timestamp() - last_seen_at)::float8 AS silent_seconds
      FROM nodes_all WHERE removed_at IS NULL ORDER BY state = 'online', last_seen_at NULLS FIRST, name LIMIT 1000
"""
_UPKEEP = """
    SELECT (SELECT counted_until FROM nodes_gpu_clock WHERE id = 1) AS samples_until,
           (SELECT max(at) + interval '5 minutes' FROM nodes_rollups) AS rolled_up_until,
           (SELECT seen_at FROM nodes_listener WHERE id = 1) AS listening_at,
           (SELECT worker FROM scheduling_beats WHERE id = 1) AS worker,
           (SELECT term FROM scheduling_terms) AS term
"""


def control_plane() -> Row:
    """Return `database cycles upkeep scheduler version`; times in seconds and milliseconds."""
    [database], [cycles], [upkeep] = query(_DATABASE), query(_CYCLES), query(_UPKEEP)
    return {
        "database": {**database, "is_own": not settings.ENV.database_url},
        "cycles": cycles,
        "upkeep": upkeep,
        "scheduler": cluster.scheduler_lag(),
        "version": __version__,
    }


def agents() -> list[Row]:
    """Return agents, those not online first; `notes` lists their problems."""
    return [{**row, "notes": list(_notes(row))} for row in query(_AGENTS)]


def _notes(row: Row) -> list[str]:
    notes = []
    if row["agent_version"] and row["agent_version"] != __version__:
        notes.append(f"agent {row['agent_version']}, server {__version__}; versions may differ by one")
    off = row["clock_off_seconds"]
    if off is not None and abs(off) > TOLERATED_SECONDS:
        notes.append(f"its clock is {abs(off):.0f} s {'ahead' if off > 0 else 'behind'}; the server corrects its times")
    if row["state"] == "online" and (row["silent_seconds"] or 0) > 3 * settings.ENV.heartbeat_seconds:
        notes.append(f"silent for {row['silent_seconds']:.0f} s")
    return notes
