"""The variables of a job in a container: each is passed unchanged, or refused by name."""

import pytest

from gpusched.agent.containers import command_lines
from gpusched.protocol.job_request import JobRequest, validate


def test_value_with_a_line_break_is_refused_by_name_when_the_format_cannot_hold_it() -> None:
    with pytest.raises(ValueError, match="the value of KEY has a line break"):
        command_lines.environment_text("docker", {"KEY": "a\nb"})
    assert command_lines.environment_text("apptainer", {"KEY": "a\n'b"}) == "KEY='a\n'\"'\"'b'\n"


@pytest.mark.parametrize("runtime", ["apptainer", "docker"])
@pytest.mark.parametrize("name", ["KEY\n", "A=1\nB", "A;touch /tmp/x;B", "", "1A"])
def test_invalid_variable_name_is_refused(runtime: str, name: str) -> None:
    with pytest.raises(ValueError, match="is not a valid variable name"):
        command_lines.environment_text(runtime, {name: "x"})
    assert validate(JobRequest(command=["true"], environment={name: "x"}))
    assert validate(JobRequest(command=["true"], node_selector={name: "x"})) or name == "1A"
    assert validate(JobRequest(command=["true"], labels={"a": "b\n"}))
