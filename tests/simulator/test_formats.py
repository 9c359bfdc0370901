"""Traces are read in their own formats, and errors name file, line and column."""

import gzip
import json
from pathlib import Path

import pytest

from scheduling.simulator.errors import InputError
from scheduling.simulator.traces.formats import read_trace


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_philly_has_dates_without_a_zone_and_virtual_clusters(tmp_path: Path) -> None:
    text = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-01 00:01:00,90.0,4,360.0,b\n2017-10-01 00:00:00,7,1,7,a\n"
    first, second = read_trace(write(tmp_path / "t.csv.gz", text), "philly")
    assert (first.tenant, first.gpus, first.run_seconds) == ("a", 1, 7.0)
    assert (second.tenant, second.gpus, second.run_seconds) == ("b", 4, 90.0)
    assert second.submitted_at - first.submitted_at == 60.0
    assert first.submitted_at == 1_506_816_000.0


def test_muri_counts_in_milliseconds(tmp_path: Path) -> None:
    text = "job_id,num_gpu,submit_time,iterations,duration\n7,32,1500,9,2500\n"
    (job,) = read_trace(write(tmp_path / "t.csv", text), "muri")
    assert (job.name, job.gpus, job.submitted_at, job.run_seconds) == ("7", 32, 1.5, 2.5)


def test_gavel_runs_as_long_as_its_steps_take_on_a_v100(tmp_path: Path) -> None:
    speeds = {"v100": {"('LM', 1)": {"null": 4.0}}, "k80": {"('LM', 1)": {"null": 1.0}}}
    write(tmp_path / "simulation_throughputs.json.gz", json.dumps(speeds))
    (job,) = read_trace(write(tmp_path / "t.csv", "arrival_s,gpus,job_type,steps\n10.0,8,LM,400\n"), "gavel")
    assert (job.submitted_at, job.gpus, job.run_seconds) == (10.0, 8, 100.0)
    with pytest.raises(InputError, match=r"line 2, column 'job_type': the speed of 'GAN' on a V100 is not known"):
        read_trace(write(tmp_path / "t.csv", "arrival_s,gpus,job_type,steps\n10.0,8,GAN,400\n"), "gavel")


def test_csv_format_has_defaults_for_missing_columns(tmp_path: Path) -> None:
    text = (
        "job_id,submitted_at,gpus,run_seconds,tenant,user,priority,limit_seconds,predicted_seconds\n"
        "a,2026-03-01T00:00:10Z,2,30.5,nlp,ada,1200,3600,40\n"
        "b,2026-03-01T01:00:00+01:00,0,1,,,,,\n"
    )
    late, early = sorted(read_trace(write(tmp_path / "t.csv", text), "csv"), key=lambda job: job.name)
    assert (late.tenant, late.user, late.priority, late.limit_seconds, late.predicted_seconds) == (
        "nlp", "ada", 1200, 3600, 40.0,
    )  # fmt: skip
    assert (early.tenant, early.priority, early.limit_seconds, early.predicted_seconds) == ("all", 500, None, None)
    assert late.submitted_at - early.submitted_at == 10.0
    (short,) = read_trace(write(tmp_path / "s.csv", "job_id,submitted_at,gpus,run_seconds\nx,5,1,2\n"), "csv")
    assert short.submitted_at == 5.0


HEADER = "job_id,submitted_at,gpus,run_seconds,priority,limit_seconds\n"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("a,5,1,x,,", "line 3, column 'run_seconds': 'x' is not a number."),
        ("a,5,1,nan,,", "line 3, column 'run_seconds': nan is not a number of at least 0."),
        ("a,5,1,-1,,", "line 3, column 'run_seconds': -1 is not a number of at least 0."),
        ("a,5,1,1e308,,", "line 3, column 'run_seconds': 1e308 is more than 1e+15."),
        ("a,5,1,inf,,", "line 3, column 'run_seconds': inf is not a number of at least 0."),
        ("a,5,1.5,1,,", "line 3, column 'gpus': 1.5 is not a whole number."),
        ("a,5,1e9,1,,", "line 3, column 'gpus': 1000000000 GPUs are more than"),
        ("a,soon,1,1,,", "line 3, column 'submitted_at': 'soon' is neither seconds nor a date and time."),
        ("a,5,1,1,-3,", "line 3, column 'priority': -3 is not a number of at least 0."),
        ("a,5,1,1,,0", "line 3, column 'limit_seconds': 0 is not a number of at least 1."),
        ("a", "line 3, column 'submitted_at': '' is neither"),
    ],
)  # fmt: skip
def test_a_bad_field_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = write(tmp_path / "t.csv", HEADER + "ok,5,1,1,,\n" + line + "\n")
    with pytest.raises(InputError) as caught:
        read_trace(path, "csv")
    assert str(caught.value).startswith(f"{path}, {problem}")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "line 1: there is no column 'job_id'."),
        (b"job_id,submitted_at,gpus\n", "line 1: there is no column 'run_seconds'."),
        (HEADER.encode() + b"a,\xff\xfe,1,1\n", "it is not a table"),
        (HEADER.encode() + b'a,"5,1,1\n', "it is not a table"),
        (HEADER.encode(), "it has no jobs."),
    ],
)
def test_a_file_that_is_no_such_table_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_trace(tmp_path / "t.csv", "csv")
    assert problem in str(caught.value)


def test_uncompressed_file_with_gz_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv.gz").write_text(HEADER)
    with pytest.raises(InputError, match="it is not a table"):
        read_trace(tmp_path / "t.csv.gz", "csv")
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(HEADER.encode() * 1000)[:-20])
    with pytest.raises(InputError):
        read_trace(tmp_path / "cut.csv.gz", "csv")
