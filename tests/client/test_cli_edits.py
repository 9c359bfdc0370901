"""`gpusched policy` and `gpusched quota`: their requests and their arguments."""

from pathlib import Path

import pytest

from tests.client.answers import EXTENDED, POLICY, QUOTA
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer


def test_policy_change_sends_values_and_the_version_read(full: FakeServer) -> None:
    sentence = "1 running job (4 GPUs) would be stopped for jobs that come before them"
    full.on("PATCH", "/scheduling/policy", Answer(200, {**POLICY, "effect": {"sentences": [sentence]}}))
    arguments = ("policy=cost_aware", "online_percent=20", 'cost_by_model={"H100": 2.5}', "enable_preemption=false")
    result = call(full.url, "policy", *arguments, "--dry-run")
    assert result.stderr.splitlines() == [sentence, "nothing changed (dry run)"]
    [sent] = [request for request in full.requests if request.method == "PATCH"]
    assert (sent.query, sent.headers["if-match"]) == ({"dry_run": "true"}, '"2"')
    assert sent.json == {
        "policy": "cost_aware",
        "online_percent": 20,
        "cost_by_model": {"H100": 2.5},
        "enable_preemption": False,
    }


@pytest.mark.parametrize("arguments", [["online_percent"], ["=4"], ["online_percent="], ["--dry-run"]])
def test_invalid_policy_change_is_refused(full: FakeServer, arguments: list[str]) -> None:
    assert call(full.url, "policy", *arguments).exit_code == 2
    assert not [request for request in full.requests if request.method == "PATCH"]


def test_quota_change_prints_its_effect(full: FakeServer) -> None:
    sentence = "2 waiting jobs (2 GPUs) would start now that otherwise wait"
    effect = {"sentences": [sentence], "contradicts": False}
    full.on("PUT", "/tenants/nlp/quota", Answer(200, {**QUOTA, "effect": effect, "status": "would_be_changed"}))
    result = call(full.url, "quota", "nlp", "--max-gpus-by-model", "A100=4, NVIDIA H100=2", "--dry-run")
    assert result.stderr.splitlines() == [sentence, "nothing changed (dry run)"]
    [put] = [request for request in full.requests if request.method == "PUT"]
    assert put.query == {"dry_run": "true"}
    assert put.json["max_gpus_by_model"] == {"A100": 4, "NVIDIA H100": 2}
    assert put.json["max_gpus"] == 8


@pytest.mark.parametrize(("text", "minutes"), [("480", 480), ("none", None)])
def test_default_time_limit_of_a_tenant_is_set_and_removed(full: FakeServer, text: str, minutes: int | None) -> None:
    assert call(full.url, "quota", "nlp", "--default-runtime-minutes", text).exit_code == 0
    [put] = [request for request in full.requests if request.method == "PUT"]
    assert put.json["default_runtime_minutes"] == minutes


@pytest.mark.parametrize("text", ["A100", "A100=", "=4", "A100=x", "A100=4,"])
def test_limits_by_model_are_parsed_or_refused(full: FakeServer, text: str) -> None:
    assert call(full.url, "quota", "nlp", "--max-gpus-by-model", text).exit_code == 2
    assert not [request for request in full.requests if request.method == "PUT"]


def test_quota_change_keeps_the_other_limits(full: FakeServer) -> None:
    result = call(full.url, "quota", "nlp", "--max-gpus", "none")
    put = next(request for request in full.requests if request.method == "PUT")
    assert (put.json["max_gpus"], put.json["guaranteed_gpus"]) == (None, 4)
    assert put.headers["if-match"] == '"3"'
    assert "version 4" in result.stderr


def test_extend_sends_its_options_and_lists_delayed_jobs(full: FakeServer) -> None:
    delay = {"job_id": 43, "was_p90_at": "2030-01-01T10:00:00Z", "p90_at": "2030-01-01T11:00:00Z"}
    full.on("POST", "/jobs/42/extend", Answer(200, {**EXTENDED, "delays": [delay], "others_delayed": 2}))
    result = call(full.url, "extend", "42", "--by", "60", "--dry-run")
    assert result.stderr.splitlines() == [EXTENDED["message"]]
    assert result.stdout.splitlines() == [
        "job 43 starts by 2030-01-01 11:00 UTC, not 2030-01-01 10:00",
        "and 2 of other tenants",
    ]
    assert call(full.url, "extend", "42", "--to", "90", "--force").exit_code == 0
    dry, wet = [request for request in full.requests if request.path.endswith("/extend")]
    assert (dry.query, dry.json) == ({"dry_run": "true"}, {"add_minutes": 60})
    assert (wet.query, wet.json) == ({}, {"max_runtime_minutes": 90, "force": True})
    assert dry.headers["idempotency-key"] != wet.headers["idempotency-key"]


@pytest.mark.parametrize("arguments", [[], ["--by", "1", "--to", "2"], ["--by", "x"]])
def test_invalid_extend_is_refused(full: FakeServer, arguments: list[str]) -> None:
    assert call(full.url, "extend", "42", *arguments).exit_code == 2
    assert not [request for request in full.requests if request.path.endswith("/extend")]


def test_submit_sends_affinity_and_tolerations_beside_those_of_a_file(full: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: [a]\ntolerations: [{key: old, operator: Exists}]\n"
        "node_affinity: {required: [{key: rack, operator: exists}]}\n"
    )
    flags = ("--toleration", "dedicated=ml:NoSchedule", "--affinity", "zone notin (a)", "--prefer", "10:fast")
    assert call(full.url, "submit", "-f", str(file), *flags).exit_code == 0
    assert full.requests[0].json == {
        "command": ["a"],
        "tolerations": [
            {"key": "old", "operator": "Exists", "value": "", "effect": None},
            {"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoSchedule"},
        ],
        "node_affinity": {
            "required": [
                {"key": "rack", "operator": "exists", "values": []},
                {"key": "zone", "operator": "notin", "values": ["a"]},
            ],
            "preferred": [{"key": "fast", "operator": "exists", "values": [], "weight": 10}],
        },
    }


@pytest.mark.parametrize(
    ("flag", "text"),
    [("--toleration", "a:NoExecute"), ("--affinity", "zone in ()"), ("--prefer", "101:zone"), ("--affinity", "a b")],
)
def test_invalid_expression_is_refused_with_the_valid_forms(full: FakeServer, flag: str, text: str) -> None:
    result = call(full.url, "submit", flag, text, "--", "true")
    assert result.exit_code == 2 and text in result.stderr
    assert not full.requests


def test_node_label_and_taint_send_additions_and_removals(full: FakeServer) -> None:
    result = call(full.url, "node", "label", "n1", "zone=a", "empty=", "old-", "-o", "csv")
    assert result.stdout.splitlines() == ["name,value,set by", "arch,x86,agent", "zone,a,admin"]
    assert full.requests[-1].json == {"labels": {"zone": "a", "empty": "", "old": None}}
    arguments = ("dedicated=ml:NoSchedule", "spot:PreferNoSchedule-", "slow-")
    assert call(full.url, "node", "taint", "n1", *arguments, "-o", "name").stdout == "dedicated=ml:NoSchedule\n"
    assert full.requests[-1].json == {
        "add": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}],
        "remove": ["spot:PreferNoSchedule", "slow"],
    }
    for command in ("label", "taint"):
        assert call(full.url, "node", command, "n1").exit_code == 0
        assert full.requests[-1].method == "GET"


@pytest.mark.parametrize(
    "arguments", [("label", "n1", "zone"), ("label", "n1", "-"), ("taint", "n1", "a=b"), ("taint", "n1", "a:X")]
)
def test_invalid_node_label_or_taint_is_refused(full: FakeServer, arguments: tuple[str, ...]) -> None:
    assert call(full.url, "node", *arguments).exit_code == 2
    assert not [request for request in full.requests if request.method == "PATCH"]


@pytest.mark.parametrize(("text", "sent"), [("auto", "auto"), ("4096", 4096), ("lots", None)])
def test_gpu_memory_is_a_number_or_auto(full: FakeServer, text: str, sent: str | int | None) -> None:
    result = call(full.url, "submit", "--gpus", "1", "--gpu-memory-mb", text, "--", "true")
    posts = [request for request in full.requests if request.method == "POST"]
    assert [request.json["gpu_memory_mb"] for request in posts] == ([] if sent is None else [sent])
    assert result.exit_code == (2 if sent is None else 0)
    assert sent is not None or "--gpu-memory-mb lots is neither" in result.stderr
