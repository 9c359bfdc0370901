"""Secrets from the command line: jobs name them, and no value ever stands in an argument (A56)."""

from pathlib import Path

import pytest

from gpusched.cli.flags import job_fields
from gpusched.client.errors import Invalid


def test_a_job_names_them_and_flags_add_to_those_of_its_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [x]\nsecrets: [wandb, hf]\n")
    fields = job_fields({"file": tmp_path / "job.yaml", "secrets": ["hf", "s3", "s3"]})
    assert fields["secrets"] == ["wandb", "hf", "s3"]
    assert job_fields({"secrets": ["wandb"]})["secrets"] == ["wandb"]


def test_values_in_a_job_file_are_left_to_be_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [x]\nsecrets: {wandb: hunter2}\n")
    assert job_fields({"file": tmp_path / "job.yaml", "secrets": ["hf"]})["secrets"] == {"wandb": "hunter2"}


@pytest.mark.parametrize("text", ["token=hunter2", "token=@file", "hunter2 ", "../hunter2"])
def test_what_is_no_name_is_refused_and_not_repeated(text: str) -> None:
    """Everybody on the machine can read a command line; the refusal must not go into a log with it, either."""
    with pytest.raises(Invalid) as refused:
        job_fields({"secrets": [text]})
    told = f"{refused.value} {refused.value.next_step}"
    assert "hunter2" not in told and "gpusched secret set" in told
