"""Single submits as in benchmarks/submit.py, with one synchronous standby and without, in turns of a few seconds.

Primary and standby share the machine and its disk, so the standby costs more here than on a machine of its own."""

import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import psycopg

from benchmarks.report import arguments, publish
from benchmarks.submit import send
from gpusched.lib.db.embedded import Server
from tests.system import prepared
from tests.system.stack import Stack
from tests.system.standby import start_pair
from tests.waiting import wait_for

_IS_SYNCHRONOUS = "SELECT sync_state IN ('sync', 'quorum') FROM pg_stat_replication"


def main() -> None:
    options = arguments(__doc__ or "", turns=7, jobs=1000, connections=8)
    rates: dict[bool, list[float]] = {False: [], True: []}
    failures = 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpusched-standby-", dir="/tmp")))
        folder.chmod(0o755)
        system, primary = start(stack, folder)
        send(system, 200, options.connections)  # warm
        for turn in range(2 * options.turns):
            has_standby = turn % 4 in (1, 2)  # without, with, with, without: a drift counts for both
            wait_for_standby(primary, has_standby)
            began = time.perf_counter()
            _, failed = send(system, options.jobs, options.connections)
            rates[has_standby].append(options.jobs / (time.perf_counter() - began))
            failures += failed
    without, with_standby = statistics.median(rates[False]), statistics.median(rates[True])
    publish(
        {
            "without_per_second": without,
            "with_standby_per_second": with_standby,
            "percent": 100 * with_standby / without,
            "least_per_second": min(rates[True]),
            "turns": options.turns,
        },
        options.json,
        failures,
    )


def start(stack: ExitStack, folder: Path) -> tuple[Stack, Server]:
    """Start a primary, its standby, and a control plane on them."""
    data = folder / "data"
    prepared.copy_to(data)
    primary = Server(data / "postgres")
    stack.callback(primary.remove)
    stack.callback(start_pair(primary, folder / "standby").remove)
    return stack.enter_context(Stack(database_url=primary.url())), primary  # its files are of the same template


def wait_for_standby(primary: Server, has_standby: bool) -> None:
    """Let each commit wait for the standby from now on, or for none."""
    with psycopg.connect(primary.url(), autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{'*' if has_standby else ''}'")
        connection.execute("SELECT pg_reload_conf()")
        wait_for(lambda: connection.execute(_IS_SYNCHRONOUS).fetchone() == (has_standby,), 30, "the standby")


if __name__ == "__main__":
    main()
