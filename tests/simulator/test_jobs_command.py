"""`manage.py simulate jobs`: what it prints, draws and refuses."""

import json
import xml.etree.ElementTree as ET
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

HEADER = "job_id,submitted_at,gpus,run_seconds,tenant\n"


def trace(folder: Path, *lines: str) -> str:
    path = folder / "trace.csv"
    path.write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return str(path)


def simulated(*arguments: str) -> str:
    out = StringIO()
    call_command("simulate", "jobs", *arguments, stdout=out)
    return out.getvalue()


def figures(*arguments: str) -> dict[str, Any]:
    last: dict[str, Any] = json.loads(simulated(*arguments, "--json").splitlines()[-1])
    return last


def test_the_last_line_is_the_figures_as_json(tmp_path: Path) -> None:
    file = trace(tmp_path, "a,0,8,3600,x", "b,0,8,7200,x")
    found = figures(file, "--nodes", "1", "--policy", "fifo")
    assert found["queue_hours"] == {"mean": 0.5, "p50": 0.0, "p99": 1.0, "max": 1.0}
    assert found["jct_hours"] == {"mean": 2.0, "p50": 1.0, "p99": 3.0, "max": 3.0}
    assert (found["utilisation_percent"], found["preemptions_per_job"]) == (100.0, 0.0)
    assert (found["jobs"], found["seeds"], found["policy"]) == (2, 1, "fifo")
    assert found["never_fit"] == {"jobs": 0, "names": []}


def test_default_number_of_nodes_is_four_fifths_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """But the widest has room, and a job that takes no time is no division by it."""
    for lines, nodes in ((["a,0,8,60,x", "b,0,8,60,x"], 3), (["a,0,32,1,x", "b,99,1,1,x"], 4), (["a,0,1,0,x"], 1)):
        figures(trace(tmp_path, *lines))
        assert f"on {nodes} nodes of 8 GPUs" in capsys.readouterr().err


def test_table_shows_each_seed_and_their_mean(tmp_path: Path) -> None:
    file = trace(tmp_path, *[f"{n},{n},8,{100 * n + 50},x" for n in range(9)])
    text = simulated(file, "--nodes", "1", "--policy", "shortest", "--predictions", "noisy", "--seeds", "3")
    for row in ("waited, seed 1", "waited, seed 3", "waited, mean", "submit to end, mean"):
        assert row in text
    assert "9 jobs; 100.0 % of the GPU time used" in text
    found = figures(file, "--nodes", "1", "--policy", "shortest", "--predictions", "noisy", "--seeds", "3")
    assert found["seeds"] == 3 and found["sd"]["queue_hours"]["mean"] > 0


def test_seeds_without_noise_replay_once(tmp_path: Path) -> None:
    assert figures(trace(tmp_path, "a,0,1,1,x"), "--nodes", "1", "--seeds", "5")["seeds"] == 1


def test_jobs_that_can_never_start_are_counted_and_named(tmp_path: Path) -> None:
    file = trace(tmp_path, "small,0,1,60,x", "huge,0,9,60,x", "greedy,0,3,60,y")
    arguments = (file, "--nodes", "1", "--quota", "y=2")
    assert "2 jobs can never start on this cluster and were left out: huge (9 GPUs), greedy (3 GPUs)" in simulated(
        *arguments
    )
    found = figures(*arguments)
    assert (found["jobs"], found["never_fit"]) == (1, {"jobs": 2, "names": ["huge", "greedy"]})
    with pytest.raises(CommandError, match=r"none of the 3 jobs fits on the cluster\."):
        simulated(file, "--nodes", "1", "--gpus-per-node", "1", "--quota", "x=0", "--quota", "y=0")


def test_tenants_with_their_own_nodes_are_counted_together(tmp_path: Path) -> None:
    file = trace(tmp_path, "a,0,8,3600,x", "b,0,8,3600,x", "c,0,8,3600,y", "d,0,8,3600,z")
    found = figures(file, "--nodes", "x=1,y=1", "--policy", "fifo")
    assert found["jobs"] == 3
    assert found["queue_hours"]["mean"] == pytest.approx(1 / 3, abs=1e-3)
    assert figures(file, "--nodes", "1", "--tenant", "y")["jobs"] == 1


def test_a_part_of_the_time_can_be_replayed(tmp_path: Path) -> None:
    days = [f"{day},2026-03-{day:02d}T12:00:00Z,1,60,x" for day in range(1, 11)]
    file = trace(tmp_path, *days)
    assert figures(file, "--nodes", "1", "--since", "2026-03-03", "--until", "2026-03-06T12:00:00")["jobs"] == 3


def test_settings_of_the_policy_can_be_changed(tmp_path: Path) -> None:
    file = trace(tmp_path, "wide,0,16,60,x", "small,0,1,60,x")
    gangs, none = (figures(file, "--nodes", "2", "--set", f"gangs={value}") for value in ("true", "false"))
    assert (gangs["never_fit"]["jobs"], none["never_fit"]["jobs"]) == (0, 1)


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_a_plot_is_drawn(tmp_path: Path, suffix: str) -> None:
    plot = tmp_path / f"plot.{suffix}"
    simulated(trace(tmp_path, "a,0,8,86400,x", "b,0,8,86400,x & y"), "--nodes", "1", "--plot", str(plot))
    if suffix == "svg":
        root = ET.fromstring(plot.read_text())  # noqa: S314 - we have just written it
        text = [entry.text for entry in root.iter("{http://www.w3.org/2000/svg}text")]
        assert {"jobs waiting", "GPUs in use, %", "2 days"} <= set(text)
    else:
        assert plot.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--tenant", "nobody"], r"--tenant: no job is of tenant 'nobody'; the tenants are x\."),
        (["--nodes", "1", "--quota", "y=3"], r"--quota: no job is of tenant 'y'"),
        (["--nodes", "1", "--quota", "x"], r"--quota: 'x' is not NAME=VALUE\."),
        (["--nodes", "1", "--weight", "x=-1"], r"--weight: x=-1 is not a number of at least 0\."),
        (["--nodes", "1", "--set", "colour=1"], r"--set: no setting is named 'colour'; the settings are aging_points"),
        (["--nodes", "1", "--set", "online_percent=much"], r"--set: online_percent=much is not a number"),
        (["--nodes", "1", "--since", "yesterday"], r"--since: 'yesterday' is no date"),
        (["--nodes", "1", "--since", "2100-01-01"], r"no job was submitted between"),
        (["--nodes", "1", "--plot", "plot.jpg"], r"plot\.jpg: a plot is written as \.svg or \.png\."),
        (["--nodes", "1", "--plot", "nowhere/plot.svg"], r"nowhere/plot\.svg: there is no such folder"),
        (["--nodes", "0"], r"'0' is not a whole number from 1 to 100000"),
        (["--nodes", "1", "--policy", "lottery"], r"invalid choice: 'lottery'"),
        (["--nodes", "1", "--preemption-seconds", "-5"], r"'-5' is not a number of at least 0"),
    ],
)
def test_unusable_options_are_refused_with_a_sentence(tmp_path: Path, arguments: list[str], problem: str) -> None:
    nodes = [] if "--nodes" in arguments else ["--nodes", "1"]
    with pytest.raises(CommandError, match=problem):
        simulated(trace(tmp_path, "a,0,1,1,x"), *nodes, *arguments)


def test_a_bad_line_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"trace\.csv, line 2, column 'gpus': 'many' is not a number\."):
        simulated(trace(tmp_path, "a,0,many,1,x"), "--nodes", "1")
    with pytest.raises(CommandError, match=r"absent\.csv: No such file or directory\."):
        simulated(str(tmp_path / "absent.csv"), "--nodes", "1")


@pytest.mark.parametrize("wrong", ["usage_half_life_seconds=0", "online_percent=150", "window_seconds=0"])
def test_a_setting_outside_its_range_is_refused(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(CommandError, match=f"{wrong.partition('=')[0]} must be between"):
        simulated(trace(tmp_path), "--nodes", "1", "--set", wrong)
