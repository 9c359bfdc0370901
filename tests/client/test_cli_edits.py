"""`gpusched policy` and `gpusched quota`: what they send, and what they understand."""

from pathlib import Path

import pytest

from tests.client.answers import EXTENDED, POLICY, QUOTA
from tests.client.commandline import call
from tests.client.fakeserver import Answer, FakeServer


def test_a_policy_change_sends_values_and_the_version_it_saw(full: FakeServer) -> None:
    said = "1 running job (4 GPUs) would be stopped for jobs that come before them"
    full.on("PATCH", "/scheduling/policy", Answer(200, {**POLICY, "effect": {"sentences": [said]}}))
    words = ("policy=cost_aware", "online_percent=20", 'cost_by_model={"H100": 2.5}', "enable_preemption=false")
    result = call(full.url, "policy", *words, "--dry-run")
    assert result.stderr.splitlines() == [said, "nothing changed (dry run)"]
    [sent] = [asked for asked in full.asked if asked.method == "PATCH"]
    assert (sent.query, sent.headers["if-match"]) == ({"dry_run": "true"}, '"2"')
    assert sent.json == {
        "policy": "cost_aware",
        "online_percent": 20,
        "cost_by_model": {"H100": 2.5},
        "enable_preemption": False,
    }


@pytest.mark.parametrize("words", [["online_percent"], ["=4"], ["online_percent="], ["--dry-run"]])
def test_a_policy_change_is_understood_or_refused(full: FakeServer, words: list[str]) -> None:
    assert call(full.url, "policy", *words).exit_code == 2
    assert not [asked for asked in full.asked if asked.method == "PATCH"]


def test_a_quota_change_says_what_it_does(full: FakeServer) -> None:
    said = "2 waiting jobs (2 GPUs) would start now that otherwise wait"
    effect = {"sentences": [said], "contradicts": False}
    full.on("PUT", "/tenants/nlp/quota", Answer(200, {**QUOTA, "effect": effect, "status": "would_be_changed"}))
    result = call(full.url, "quota", "nlp", "--max-gpus-by-model", "A100=4, NVIDIA H100=2", "--dry-run")
    assert result.stderr.splitlines() == [said, "nothing changed (dry run)"]
    [put] = [asked for asked in full.asked if asked.method == "PUT"]
    assert put.query == {"dry_run": "true"}
    assert put.json["max_gpus_by_model"] == {"A100": 4, "NVIDIA H100": 2}
    assert put.json["max_gpus"] == 8


@pytest.mark.parametrize("text", ["A100", "A100=", "=4", "A100=x", "A100=4,"])
def test_limits_by_model_are_understood_or_refused(full: FakeServer, text: str) -> None:
    assert call(full.url, "quota", "nlp", "--max-gpus-by-model", text).exit_code == 2
    assert not [asked for asked in full.asked if asked.method == "PUT"]


def test_a_quota_change_keeps_the_other_limits(full: FakeServer) -> None:
    result = call(full.url, "quota", "nlp", "--max-gpus", "none")
    put = next(asked for asked in full.asked if asked.method == "PUT")
    assert (put.json["max_gpus"], put.json["guaranteed_gpus"]) == (None, 4)
    assert put.headers["if-match"] == '"3"'
    assert "version 4" in result.stderr


def test_extend_sends_what_was_said_and_tells_who_starts_later(full: FakeServer) -> None:
    delay = {"job_id": 43, "was_p90_at": "2030-01-01T10:00:00Z", "p90_at": "2030-01-01T11:00:00Z"}
    full.on("POST", "/jobs/42/extend", Answer(200, {**EXTENDED, "delays": [delay], "others_delayed": 2}))
    result = call(full.url, "extend", "42", "--by", "60", "--dry-run")
    assert result.stderr.splitlines() == [EXTENDED["message"]]
    assert result.stdout.splitlines() == [
        "job 43 starts by 2030-01-01 11:00 UTC, not 2030-01-01 10:00",
        "and 2 of other tenants",
    ]
    assert call(full.url, "extend", "42", "--to", "90", "--force").exit_code == 0
    dry, wet = [asked for asked in full.asked if asked.path.endswith("/extend")]
    assert (dry.query, dry.json) == ({"dry_run": "true"}, {"add_minutes": 60})
    assert (wet.query, wet.json) == ({}, {"max_runtime_minutes": 90, "force": True})
    assert dry.headers["idempotency-key"] != wet.headers["idempotency-key"]


@pytest.mark.parametrize("words", [[], ["--by", "1", "--to", "2"], ["--by", "x"]])
def test_extend_is_understood_or_refused(full: FakeServer, words: list[str]) -> None:
    assert call(full.url, "extend", "42", *words).exit_code == 2
    assert not [asked for asked in full.asked if asked.path.endswith("/extend")]


def test_submit_sends_affinity_and_tolerations_beside_those_of_a_file(full: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "command: [a]\ntolerations: [{key: old, operator: Exists}]\n"
        "node_affinity: {required: [{key: rack, operator: exists}]}\n"
    )
    flags = ("--toleration", "dedicated=ml:NoSchedule", "--affinity", "zone notin (a)", "--prefer", "10:fast")
    assert call(full.url, "submit", "-f", str(file), *flags).exit_code == 0
    assert full.asked[0].json == {
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
def test_flag_that_is_no_expression_is_refused_with_the_forms_that_are(full: FakeServer, flag: str, text: str) -> None:
    result = call(full.url, "submit", flag, text, "--", "true")
    assert result.exit_code == 2 and text in result.stderr
    assert not full.asked


def test_node_label_and_taint_send_what_is_set_and_what_is_removed(full: FakeServer) -> None:
    result = call(full.url, "node", "label", "n1", "zone=a", "empty=", "old-", "-o", "csv")
    assert result.stdout.splitlines() == ["name,value,set by", "arch,x86,agent", "zone,a,admin"]
    assert full.asked[-1].json == {"labels": {"zone": "a", "empty": "", "old": None}}
    words = ("dedicated=ml:NoSchedule", "spot:PreferNoSchedule-", "slow-")
    assert call(full.url, "node", "taint", "n1", *words, "-o", "name").stdout == "dedicated=ml:NoSchedule\n"
    assert full.asked[-1].json == {
        "add": [{"key": "dedicated", "value": "ml", "effect": "NoSchedule"}],
        "remove": ["spot:PreferNoSchedule", "slow"],
    }
    for what in ("label", "taint"):
        assert call(full.url, "node", what, "n1").exit_code == 0
        assert full.asked[-1].method == "GET"


@pytest.mark.parametrize(
    "words", [("label", "n1", "zone"), ("label", "n1", "-"), ("taint", "n1", "a=b"), ("taint", "n1", "a:X")]
)
def test_node_label_or_taint_that_is_not_understood_is_refused(full: FakeServer, words: tuple[str, ...]) -> None:
    assert call(full.url, "node", *words).exit_code == 2
    assert not [asked for asked in full.asked if asked.method == "PATCH"]
