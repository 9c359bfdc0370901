"""Processor time and resident memory of an agent that reads 8 GPUs once a second through NVML (a fake driver below the
real binding, so the time in NVIDIA's own library is not counted)."""

import os
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.memory import resident_mib
from benchmarks.report import arguments, publish
from tests.system.stack import ROOT, Stack
from tests.waiting import wait_for

# The fields of tests/agent/fake_nvml.c.
DEVICE = "NVIDIA A100-SXM4-80GB|81920|40960|55|61|300000|0|ok|"
GPUS = 8


def main() -> None:
    options = arguments(__doc__ or "", seconds=60)
    with Stack() as stack, tempfile.TemporaryDirectory(prefix="gpusched-nvml-") as name:
        os.environ |= _fake_driver(Path(name))
        agent = stack.agent(name="node").pid
        wait_for(lambda: stack.client().status().total_gpus == GPUS, 30, "its GPUs")
        time.sleep(3)
        cpu_before, began = _cpu_seconds(agent), time.monotonic()
        time.sleep(options.seconds)
        cores = (_cpu_seconds(agent) - cpu_before) / (time.monotonic() - began)
        publish({"agent_core_percent": 100 * cores, "agent_mib": resident_mib(agent), "gpus": GPUS}, options.json)


def _fake_driver(directory: Path) -> dict[str, str]:
    library, source = directory / "libnvidia-ml.so.1", ROOT / "tests" / "agent" / "fake_nvml.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    devices = directory / "devices"
    devices.write_text("\n".join([DEVICE] * GPUS) + "\n")
    return {"LD_LIBRARY_PATH": str(directory), "FAKE_NVML": str(devices)}


def _cpu_seconds(pid: int) -> float:
    """Return the processor time of all its threads, and of children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
