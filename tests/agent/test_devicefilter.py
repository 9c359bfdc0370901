"""A rank opens only its allocated GPUs, whatever it does to CUDA_VISIBLE_DEVICES."""

import errno
import os
import stat
from pathlib import Path

import pytest

from gpusched.agent.isolation import cgroup, confinement, device_filter
from gpusched.agent.rank_files import rank_dir
from gpusched.protocol.agent_messages import RankSpec
from tests.agent.conftest import supervised

needs_filter = pytest.mark.skipif(
    not confinement.current().filters_devices, reason="the kernel lets this user load no eBPF device filter here"
)
INFORMATION = "Model: \t\t NVIDIA A100\nIRQ:   \t\t 11\nGPU UUID: \t GPU-{}\nDevice Minor: \t {}\nGPU Excluded:\t No\n"


def driver(directory: Path, **gpus: int) -> str:
    for name, minor in gpus.items():
        (directory / name).mkdir(parents=True)
        (directory / name / "information").write_text(INFORMATION.format(name, minor))
    return str(directory)


def test_minor_numbers_come_from_the_driver(tmp_path: Path) -> None:
    gpus = driver(tmp_path, a=3, b=0)
    assert device_filter.minors(["GPU-a", "GPU-b"], gpus) == [0, 3]
    assert device_filter.minors([], gpus) == [], "a rank without GPUs gets none"


def test_devices_unknown_to_the_driver_are_not_filtered(tmp_path: Path) -> None:
    assert device_filter.minors(["MIG-1"], driver(tmp_path, a=3)) is None
    assert device_filter.minors([], str(tmp_path / "no-driver")) is None


@needs_filter
@pytest.mark.parametrize(
    ("major", "allowed", "first_common", "refused"),
    [
        (1, [3, 9], 100, {"zero"}),
        (1, [], 9, {"null", "zero"}),
        (1, [3, 5], 9, set()),
        (195, [], 254, set()),
    ],
)
def test_filter_allows_only_the_listed_minors_of_the_major_number(
    major: int, allowed: list[int], first_common: int, refused: set[str]
) -> None:
    base = confinement.current().groups.base
    assert base is not None
    group = f"{base.path}/test-filter-{os.getpid()}"
    cgroup.make(group, {})
    try:
        device_filter.restrict(group, major, allowed, first_common)
        if (pid := os.fork()) == 0:
            cgroup.enter(group)
            names = ("null", "zero", "urandom")
            os._exit(sum(1 << at for at, name in enumerate(names) if not _opens(f"/dev/{name}")))
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert {name for at, name in enumerate(("null", "zero", "urandom")) if code >> at & 1} == refused
    finally:
        assert cgroup.remove(group)


def _opens(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except OSError as error:
        return error.errno != errno.EPERM
    return True


@needs_filter
def test_rank_opens_only_its_own_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With files of NVIDIA's numbers: without a driver or a GPU of that number, each open fails, but not by the filter."""
    files = {name: tmp_path / name for name in ("nvidia0", "nvidia1", "nvidiactl")}
    try:
        for minor, path in zip((0, 1, 255), files.values(), strict=True):
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(device_filter.NVIDIA_MAJOR, minor))
    except PermissionError:
        pytest.skip("no device files can be made here")
    monkeypatch.setattr(device_filter, "minors", lambda uuids: [1])
    script = "; ".join(f"cat {path} 2>&1 | sed 's/.*: //'" for path in files.values())
    spec = RankSpec(
        job_id=1, attempt=1, rank=0, ranks=1, name="t", argv=["sh", "-c", script], device_uuids=["GPU-b"]
    )  # fmt: skip
    directory = supervised(tmp_path, spec)
    lines = (directory / rank_dir.LOG).read_text().splitlines()
    assert [line == "Operation not permitted" for line in lines] == [True, False, False], lines
