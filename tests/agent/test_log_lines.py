"""The agent's own log: text, or one JSON object per line that names the job, like the server's."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.agent.conftest import ROOT, Agent
from tests.agent.control import Control, eventually


@pytest.mark.parametrize("told_by", ["variable", "file"])
def test_lines_are_json_and_name_job_attempt_rank_and_node(
    agent: Agent, control: Control, tmp_path: Path, told_by: str
) -> None:
    config, log = tmp_path / "agent.toml", tmp_path / "log"
    config.write_text('log_format = "json"\n')
    variables = {"GPUSCHED_LOG_FORMAT": "json"} if told_by == "variable" else {"GPUSCHED_AGENT_CONFIG": str(config)}
    with log.open("wb") as file:
        agent.start(environment=variables, stderr=file.fileno())
    eventually(lambda: control.syncs, 20, "the agent to speak")
    in_the_way = agent.ranks / "7.1.0"
    in_the_way.write_text("no room for a rank here")
    control.run("true", job=7)
    eventually(lambda: "cannot be prepared" in log.read_text(), 20, "the error in the log")
    agent.kill()
    in_the_way.unlink()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    record = next(line for line in lines if "cannot be prepared" in line["message"])
    assert (record["job_id"], record["attempt"], record["rank"], record["node"]) == (7, 1, 0, "node-a")
    assert (record["level"], record["logger"]) == ("ERROR", "gpusched.agent.ranks.ranks")
    assert all({"at", "level", "logger", "message"} <= set(line) for line in lines)


def test_unknown_log_format_is_refused() -> None:
    command = [sys.executable, "-m", "gpusched.agent.main", "run", "--log-format", "xml"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (result.returncode, "'xml' must be one of line, json" in result.stderr) == (2, True)
