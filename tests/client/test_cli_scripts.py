"""`submit` of files. In a script, #GPUSCHED directives are flags, #SBATCH directives are translated, and ignored ones
are noted."""

from pathlib import Path
from typing import Any

import pytest

from tests.client.commandline import ROOT, Result, call
from tests.client.fakeserver import Answer, FakeServer, sequence


def submitted(server: FakeServer, tmp_path: Path, lines: str, *flags: str, code: int = 0) -> tuple[Any, Result]:
    """Return the request for a script with these lines, without the script itself."""
    script = tmp_path / "train.sh"
    script.write_text(f"#!/bin/bash\n{lines}\npython train.py\n")
    result = call(server.url, "submit", *flags, str(script))
    assert result.exit_code == code, result
    if code:
        assert server.requests == []
        return None, result
    sent = server.requests[0].json
    assert sent.pop("script") == script.read_text()
    return sent, result


def test_directives_are_flags_and_flags_override_them(full: FakeServer, tmp_path: Path) -> None:
    lines = "\n# what it needs\n#GPUSCHED --gpus 4 --name 'big one'  # a comment\n#GPUSCHED -e A=1 -e B=2 --no-requeue"
    sent, result = submitted(full, tmp_path, lines, "--gpus", "8", "-e", "B=3")
    env = {"A": "1", "B": "3"}
    assert sent == {"gpu_count": 8, "name": "big one", "environment": env, "requeue": False}
    assert result.stderr == "job 42 submitted\n"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("run#3", "run#3"),
        ("'run #3'#4 # five", "run #3#4"),
        (r"run\ #3", "run #3"),
        ('"#3" #4', "#3"),
        ("run #3", "run"),
    ],
)
@pytest.mark.parametrize("flag", ["#GPUSCHED -n", "#SBATCH -J"])
def test_comment_of_a_directive_begins_a_word(
    full: FakeServer, tmp_path: Path, flag: str, text: str, name: str
) -> None:
    """As in a shell: a # within a word or in quotes belongs to the value."""
    sent, _ = submitted(full, tmp_path, f"{flag} {text}")
    assert sent == {"name": name}


def test_directives_after_the_first_line_of_code_are_ignored(full: FakeServer, tmp_path: Path) -> None:
    sent, _ = submitted(full, tmp_path, "#GPUSCHED -g 1\nset -e\n#GPUSCHED -g 2\n#SBATCH --nonsense")
    assert sent == {"gpu_count": 1}


def test_script_with_a_byte_order_mark_is_a_script(full: FakeServer, tmp_path: Path) -> None:
    """Editors on Windows write one; before, the file's name was submitted as a program without GPUs."""
    script = tmp_path / "train.sh"
    script.write_bytes(b"\xef\xbb\xbf#!/bin/bash\r\n#GPUSCHED -g 4\r\npython train.py\r\n")
    for arguments in ((str(script),), ("--script", str(script))):
        assert call(full.url, "submit", *arguments).exit_code == 0
        sent = full.requests.pop().json
        assert sent == {"gpu_count": 4, "script": "#!/bin/bash\n#GPUSCHED -g 4\npython train.py\n"}
    assert call(full.url, "submit", "-", stdin=script.read_text("utf-8")).exit_code == 0
    assert full.requests.pop().json["gpu_count"] == 4


def test_script_with_directives_that_is_not_utf8_is_refused(server: FakeServer, tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_bytes(b"#!/bin/bash\n# Universit\xe9\n#GPUSCHED -g 4\npython train.py\n")
    result = call(server.url, "submit", str(script))
    assert result.exit_code == 2 and f"cannot read {script}" in result.stderr
    assert server.requests == []


def test_script_flag_reads_directives_too(full: FakeServer, tmp_path: Path) -> None:
    script = tmp_path / "x.sh"
    script.write_text("#!/bin/sh\n#SBATCH -J x -t 90\n")
    call(full.url, "submit", "--script", str(script), "--", "a")
    assert full.requests[0].json == {
        "script": script.read_text(), "name": "x", "max_runtime_minutes": 90.0, "args": ["a"]}  # fmt: skip


@pytest.mark.parametrize("lines", ["#SBATCH -J x\ntrue\n", "true\n"])
def test_dash_is_a_script_on_stdin(full: FakeServer, lines: str) -> None:
    """As for sbatch, with or without directives. With a file, it is a word like another."""
    script = f"#!/bin/sh\n{lines}"
    assert call(full.url, "submit", "-", "a", stdin=script).exit_code == 0
    sent = {"script": script, "args": ["a"]} | ({"name": "x"} if "#SBATCH" in lines else {})
    assert full.requests[0].json == sent
    call(full.url, "submit", "-f", "-", "-", stdin="command: [cat]")
    assert full.requests[1].json == {"command": ["cat"], "args": ["-"]}


def test_script_without_directives_is_a_plain_command(full: FakeServer, tmp_path: Path) -> None:
    script = tmp_path / "plain.sh"
    script.write_text("#!/bin/sh\ntrue\n")
    call(full.url, "submit", str(script))
    assert full.requests[0].json == {"command": [str(script)]}


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        ("#SBATCH --job-name=train --chdir=/data", {"name": "train", "workdir": "/data"}),
        ("#SBATCH -J train\n#SBATCH -D/data", {"name": "train", "workdir": "/data"}),
        ("#SBATCH --gres=gpu:a100:4", {"gpu_count": 4, "gpu_model": "a100"}),
        ("#SBATCH --gres gpu:2", {"gpu_count": 2}),
        ("#SBATCH --gres=gpu", {"gpu_count": 1}),
        ("#SBATCH -G h100:8", {"gpu_count": 8, "gpu_model": "h100"}),
        ("#SBATCH --gpus=3", {"gpu_count": 3}),
        ("#SBATCH -N 2 --gpus-per-node=8 --ntasks-per-node=1",
         {"gpu_count": 16, "gang_scheduling": True, "ranks": 2, "cpu_cores": 2.0}),
        ("#SBATCH --ntasks=4 --cpus-per-task=6 --gpus-per-task=1 --nodes=2 --mem=100G",
         {"gpu_count": 4, "gang_scheduling": True, "ranks": 4, "cpu_cores": 24.0, "memory_mb": 204800}),
        ("#SBATCH -c 8 --mem=2048", {"cpu_cores": 8.0, "memory_mb": 2048}),
        ("#SBATCH -c 8 --mem-per-cpu=512M", {"cpu_cores": 8.0, "memory_mb": 4096}),
        ("#SBATCH --gpus=4 --mem-per-gpu=0.5T", {"gpu_count": 4, "memory_mb": 2097152}),
        ("#SBATCH -t 1-12", {"max_runtime_minutes": 2160.0}),
        ("#SBATCH -t 1-12:30:30", {"max_runtime_minutes": 2190.5}),
        ("#SBATCH --time=12:30:00", {"max_runtime_minutes": 750.0}),
        ("#SBATCH --time=30:30", {"max_runtime_minutes": 30.5}),
        ("#SBATCH --time=UNLIMITED", {}),
        ("#SBATCH --no-requeue", {"requeue": False}),
        ("#SBATCH --constraint=a100&nvme\n#GPUSCHED --affinity 'zone in (a, b)' --prefer 5:fast",
         {"node_affinity": {"required": [{"key": "a100", "operator": "exists", "values": []},
                                         {"key": "nvme", "operator": "exists", "values": []},
                                         {"key": "zone", "operator": "in", "values": ["a", "b"]}],
                            "preferred": [{"key": "fast", "operator": "exists", "values": [], "weight": 5}]}}),
        ("#SBATCH -C nvme", {"node_affinity": {"required": [{"key": "nvme", "operator": "exists", "values": []}], "preferred": []}}),
        ("#SBATCH -a 0-99%10", {"array": {"count": 100, "max_parallel": 10}}),
        ("#SBATCH -d afterok:41:42,afterany:43", {"depends_on": ["after_ok:41", "after_ok:42", "after_any:43"]}),
        ("#SBATCH --dependency=afternotok:7\n#GPUSCHED --label a=b", {"depends_on": ["after_fail:7"], "labels": {"a": "b"}}),
        ("#SBATCH --array=0-3", {"array": {"count": 4}}),
        ("#SBATCH\t--gpus=2\t-J x\n#SBATCH\n#GPUSCHED\t -p 600", {"gpu_count": 2, "name": "x", "priority": 600}),
    ],
)  # fmt: skip
def test_sbatch_directives_become_totals(full: FakeServer, tmp_path: Path, lines: str, fields: dict[str, Any]) -> None:
    sent, _ = submitted(full, tmp_path, lines)
    assert sent == fields


def test_gpusched_directives_override_sbatch_ones(full: FakeServer, tmp_path: Path) -> None:
    sent, _ = submitted(full, tmp_path, "#GPUSCHED --gpus 2\n#SBATCH --gpus=1 --time=5")
    assert sent == {"gpu_count": 2, "max_runtime_minutes": 5.0}


def test_ignored_directives_are_noted_with_line_and_reason(full: FakeServer, tmp_path: Path) -> None:
    """A58: on stderr alone."""
    lines = (
        "#SBATCH --output=%j.out --partition gpu\n#SBATCH --mail-type=END --frobnicate=1 --exclusive --mem=0 -n 2"
        "\n#SBATCH --constraint=[a*2|b]"
    )
    sent, result = submitted(full, tmp_path, lines)
    assert sent == {"gang_scheduling": True, "ranks": 2, "cpu_cores": 2.0}
    assert result.stdout == "42\n"
    notes = result.stderr.splitlines()
    assert notes[0] == "train.sh:2: --output=%j.out is ignored: the server stores the output: gpusched logs"
    assert notes[1].startswith("train.sh:2: --partition=gpu is ignored: there are no partitions")
    assert notes[2].startswith("train.sh:3: --mail-type=END is ignored")
    assert notes[3] == "train.sh:3: --frobnicate=1 is ignored: it is not supported"
    assert notes[4].startswith("train.sh:3: --exclusive is ignored")
    assert notes[5].startswith("train.sh:4: --constraint=[a*2|b] is ignored: only features combined with &")
    assert notes[6].startswith("train.sh:3: --mem=0 is ignored")
    assert "no srun" in notes[7]


def test_memory_of_gpus_that_no_directive_names_is_noted_as_ignored(full: FakeServer, tmp_path: Path) -> None:
    """It cannot be multiplied by the GPUs of a flag, and must not go without a word."""
    sent, result = submitted(full, tmp_path, "#SBATCH --mem-per-gpu=16G", "--gpus", "4")
    assert sent == {"gpu_count": 4}
    assert "train.sh:2: --mem-per-gpu=16G is ignored: no #SBATCH line names GPUs" in result.stderr


def test_memory_per_gpu_of_no_gpus_leaves_the_memory_per_node(full: FakeServer, tmp_path: Path) -> None:
    sent, _ = submitted(full, tmp_path, "#SBATCH --mem=8G --mem-per-gpu=4G")
    assert sent == {"memory_mb": 8192}


@pytest.mark.parametrize(
    "line",
    [
        "#SBATCH --time=soon",
        "#SBATCH --gres=fpga:1",
        "#SBATCH --gpus=many:few",
        "#SBATCH --gpus=a100:2,v100:1",
        "#SBATCH --gpus-per-node=a100:2,v100:1",
        "#SBATCH --gpus=a100,v100",
        "#SBATCH --gres=gpu:a100:2,gpu:v100:1",
        "#SBATCH --mem=much",
        "#SBATCH --ntasks=0",
        "#SBATCH --array=1-10",
        "#SBATCH --array=0-10:2",
        "#SBATCH --array=0-9%0",
        "#GPUSCHED --array 10%0",
        "#SBATCH --dependency=singleton",
        "#SBATCH --dependency=after:41",
        "#SBATCH --job-name='half",
        "#GPUSCHED --gpus many",
        "#GPUSCHED --nonsense",
        "#GPUSCHED --script x.sh",
        "#GPUSCHED python train.py",
        "#GPUSCHED --label x",
    ],
)
def test_invalid_directive_submits_nothing(full: FakeServer, tmp_path: Path, line: str) -> None:
    """A58: exit code 2, and the line is named; a job that does less than its script requests is worse than none."""
    _, result = submitted(full, tmp_path, f"\n{line}", code=2)
    assert result.stdout == ""
    assert "train.sh:3" in result.stderr


# --- a list of jobs ---------------------------------------------------------------------------------------------------

LIST = "- {command: [prepare], ref: a}\n- {command: [train], gpu_count: 4, depends_on: [a]}\n"


def test_list_is_submitted_in_one_request_and_flags_apply_to_all(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(LIST)
    answer = {"message": "2 jobs are in the queue", "count": 2, "job_ids": [41, 42]}
    server.on("POST", "/jobs/bulk", sequence(Answer(503), Answer(201, answer)))
    result = call(server.url, "submit", "-f", str(tmp_path / "jobs.yaml"), "-t", "nlp", "--after", "7")
    assert (result.exit_code, result.stdout) == (0, "41\n42\n")
    assert "2 jobs are in the queue" in result.stderr
    assert server.requests[0].json == {"jobs": [
        {"tenant": "nlp", "command": ["prepare"], "ref": "a", "depends_on": ["7"]},
        {"tenant": "nlp", "command": ["train"], "gpu_count": 4, "depends_on": ["a", "7"]},
    ]}  # fmt: skip
    keys = {request.headers["idempotency-key"] for request in server.requests}
    assert len(server.requests) == 2 and len(keys) == 1  # one logical call, one key


def test_dry_run_of_a_list_submits_nothing(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(LIST)
    server.on("POST", "/jobs/bulk", Answer(200, {"message": "2 jobs would be submitted; nothing was", "job_ids": []}))
    result = call(server.url, "submit", "-f", str(tmp_path / "jobs.yaml"), "--dry-run")
    assert (result.exit_code, result.stdout) == (0, "")
    assert server.requests[0].query == {"dry_run": "true"}
    assert server.requests[0].json["jobs"][1]["depends_on"] == ["a"]


def test_run_refuses_several_jobs(server: FakeServer, tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text(LIST)
    assert call(server.url, "run", "-f", str(tmp_path / "jobs.yaml")).exit_code == 2
    assert server.requests == []


# --- one job in a file ------------------------------------------------------------------------------------------------


def test_time_in_a_file_needs_no_quotes(full: FakeServer, tmp_path: Path) -> None:
    """A bare one is a time to YAML; it is sent as it is written, and the server judges it. So are dates in labels."""
    written = "command: [a]\nnot_before: 2030-01-31T08:00:00+02:00\nlabels: {day: 2030-01-31}\nmax_retries: 3\n"
    (tmp_path / "job.yaml").write_text(written)
    result = call(full.url, "submit", "-f", str(tmp_path / "job.yaml"))
    assert result.exit_code == 0, result
    assert full.requests[0].json == {
        "command": ["a"], "not_before": "2030-01-31T08:00:00+02:00", "labels": {"day": "2030-01-31"}, "max_retries": 3,
    }  # fmt: skip


@pytest.mark.parametrize("wrong", ["gpus: 4", "gpu_count: four", "array: 10"])
def test_unknown_field_points_to_the_documentation(full: FakeServer, tmp_path: Path, wrong: str) -> None:
    (tmp_path / "job.yaml").write_text(f"command: [a]\n{wrong}\n")
    result = call(full.url, "submit", "-f", str(tmp_path / "job.yaml"))
    assert (result.exit_code, full.requests) == (2, [])
    document, _, part = result.stderr.partition("see the fields of a job in ")[2].strip().partition("#")
    assert f"## {part.replace('-', ' ').capitalize()}\n" in (ROOT / document).read_text("utf-8")
