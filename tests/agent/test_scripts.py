"""Scripts of jobs start as the kernel would start them, and also where it would not."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpusched.protocol.agent_messages import RankSpec
from tests.agent.conftest import supervised
from tests.agent.mounts import mount

BODY = "\nprintf '%s\\n' \"$-\" \"$@\"; tr '\\0' '\\n' < /proc/$$/cmdline\n"
FIRST_LINES = [
    "#!/bin/sh", "#! /bin/sh", "#!/bin/sh -e", "#!\t/bin/sh \t -eu \t", "#!/usr/bin/env -S sh -e", "#!/usr/bin/env sh",
]  # fmt: skip


def run(place: Path, script: str, *arguments: str) -> tuple[str, str]:
    """Return the output of a job with this script, and what is wrong with its start."""
    place.mkdir(exist_ok=True)
    spec = RankSpec(job_id=1, attempt=1, rank=0, ranks=1, name="t", argv=list(arguments), script=script)
    directory = supervised(place, spec)
    log = directory / "output.log"
    return log.read_text() if log.exists() else "", (directory / "exit.json").read_text()


@pytest.mark.parametrize("line", FIRST_LINES)
def test_first_line_means_what_it_means_to_the_kernel(tmp_path: Path, line: str) -> None:
    output, _ = run(tmp_path, line + BODY, "one", "two words")
    script = tmp_path / "node" / "ranks" / "1.1.0" / "script"
    expected = subprocess.run([script, "one", "two words"], capture_output=True, text=True, check=True).stdout
    assert output == expected and str(script) in output


def test_interpreter_that_does_not_exist_is_named(tmp_path: Path) -> None:
    """The kernel says only that there is no such file, which seemed to be the script."""
    assert '"/opt/none/python: No such file or directory"' in run(tmp_path, "#!/opt/none/python -u\n1")[1]


@pytest.fixture
def without_programs(tmp_path: Path) -> Iterator[Path]:
    """A file system on which no program may be started, as hardened machines have it for /var and /tmp."""
    place = tmp_path / "noexec"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "noexec", "none", place)
    yield place
    subprocess.run(["umount", "-l", place], check=True)


def test_script_starts_where_no_program_may_be_started(without_programs: Path) -> None:
    output, end = run(without_programs, "#!/bin/sh\necho ran", "one")
    assert output == "ran\n", end
