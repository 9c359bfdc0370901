"""From an order at the agent to the first instruction of the job, and the resident memory of a supervisor meanwhile."""

import os
import tempfile
import time
from pathlib import Path

from benchmarks.report import arguments, percentile, publish
from gpusched.agent import processes
from gpusched.agent.rank_files import rank_dir
from gpusched.agent.ranks.journal import Journal
from gpusched.agent.ranks.launcher import Launcher
from gpusched.protocol.agent_messages import RankSpec

NODE = "bench"


def main() -> None:
    options = arguments(__doc__ or "", jobs=200, nodes=1)
    os.environ["GPUSCHED_AGENT_ALLOW_ROOT"] = "true"
    with tempfile.TemporaryDirectory(prefix="gpusched-launch-") as name:
        launcher = Launcher(Path(name) / "doorbell", own_jobs=True)
        journal = Journal(Path(name), rank_dir.boot_id())
        try:
            seconds, failures = _starts(journal, launcher, options.jobs)
            sizes = _sizes(journal, launcher, 20)
        finally:
            launcher.close()
    publish(
        {
            "order_to_exec_p50_ms": percentile(seconds, 50) * 1000,
            "order_to_exec_p95_ms": percentile(seconds, 95) * 1000,
            "supervisor_rss_mib": max(rss for rss, _ in sizes),
            "supervisor_pss_mib": max(pss for _, pss in sizes),
            "jobs": len(seconds),
        },
        options.json,
        failures,
    )


def _starts(journal: Journal, launcher: Launcher, jobs: int) -> tuple[list[float], int]:
    """Start one job after the other; the job prints the time at which it runs."""
    seconds: list[float] = []
    for number in range(jobs + 5):
        began = time.time()
        directory = _launch(journal, launcher, number, ["date", "+%s.%N"])
        while not (directory / rank_dir.EXIT).exists():
            time.sleep(0.002)
        if number >= 5 and (output := (directory / rank_dir.LOG).read_text()):
            seconds.append(float(output) - began)
    return seconds, jobs - len(seconds)


def _sizes(journal: Journal, launcher: Launcher, jobs: int) -> list[tuple[float, float]]:
    """Return (RSS, PSS) in MiB of supervisors whose jobs sleep."""
    directories = [_launch(journal, launcher, 10_000 + number, ["sleep", "600"]) for number in range(jobs)]
    while not all((directory / rank_dir.STARTED).exists() for directory in directories):
        time.sleep(0.01)
    time.sleep(0.5)
    holders = [pid for directory in directories if (pid := rank_dir.holder(directory)) is not None]
    sizes = [_resident_mib(pid) for pid in holders]
    for pid in holders:
        processes.signal_all(processes.descendants(pid), 9)
    while not all((directory / rank_dir.EXIT).exists() for directory in directories):
        time.sleep(0.01)
    return sizes


def _launch(journal: Journal, launcher: Launcher, number: int, argv: list[str]) -> Path:
    spec = RankSpec(job_id=number, attempt=1, rank=0, ranks=1, name="bench", argv=argv)
    directory = journal.prepare(f"{number}.1.0", spec, NODE)
    journal.settle()
    launcher.launch(directory)
    return directory


def _resident_mib(pid: int) -> tuple[float, float]:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    sizes = {name: int(value.split()[0]) / 1024 for name, _, value in (line.partition(":") for line in lines[1:])}
    return sizes["Rss"], sizes["Pss"]


if __name__ == "__main__":
    main()
