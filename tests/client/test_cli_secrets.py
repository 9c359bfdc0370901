"""Secrets from the command line: out of files and variables, never out of arguments (A56)."""

from pathlib import Path

import pytest

from gpusched.cli.flags import job_fields
from gpusched.client.errors import Invalid


def test_they_come_from_files_and_variables_and_add_to_those_of_a_job_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("of a file\n")
    (tmp_path / "job.yaml").write_text("command: [x]\nsecrets: {a: of the job, token: to be replaced}\n")
    monkeypatch.setenv("WANDB", "of a variable")
    fields = job_fields({"file": tmp_path / "job.yaml", "secrets": [f"token=@{tmp_path}/token", "WANDB"]})
    assert fields["secrets"] == {"a": "of the job", "token": "of a file\n", "WANDB": "of a variable"}


@pytest.mark.parametrize("text", ["token=hunter2", "token=", "token=@", "=@x", "NOT_SET_ANYWHERE"])
def test_what_stands_on_the_command_line_is_refused_and_not_repeated(text: str) -> None:
    """Everybody on the machine can read a command line; the refusal must not go into a log with it, either."""
    with pytest.raises(Invalid) as refused:
        job_fields({"secrets": [text]})
    assert "hunter2" not in str(refused.value) and "--secret" in str(refused.value)
