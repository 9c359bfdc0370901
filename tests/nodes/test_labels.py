"""Labels and taints that admins set on nodes, and what the scheduler makes of them at once."""

import msgspec
import pytest

from gpusched.lib.db.sql import query
from gpusched.protocol.affinity import Expression, LabelOperator, NodeAffinity, Preference, Toleration
from gpusched.protocol.arrays import ArrayRequest
from jobs.listing import representation
from nodes.models import Node
from nodes.telemetry import readings
from scheduling.whatif.explain import explain
from tests.api.calls import call
from tests.factories import identity_for, make_node, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)
TAINT = {"key": "dedicated", "value": "ml", "effect": "NoSchedule"}


@pytest.fixture
def admin():
    return make_token(make_user("root", admin=True))


def change(token, node, what, status=200, **body):
    answer = call("PATCH", f"/api/v1/nodes/{node}/{what}", token, body)
    assert answer.status_code == status, answer.content
    return answer.json()


def job(job_id):
    return representation.select("j.id = %s", [job_id])[0]


def test_admin_label_survives_an_agent_report_and_overrides_its_label(admin):
    node = make_node(name="n1", gpus=1)
    change(admin, "n1", "labels", labels={"zone": "a", "rack": "r1"})
    reported = {"zone": "of-the-agent", "arch": "x86"}
    readings.store_facts(node.id, msgspec.structs.replace(node.facts(), labels=reported))
    labels = call("GET", "/api/v1/nodes/n1/labels", admin).json()
    assert labels["labels"] == {"zone": "a", "rack": "r1", "arch": "x86"}
    assert labels["from_admin"] == {"zone": "a", "rack": "r1"}
    assert labels["from_agent"] == {"zone": "of-the-agent", "arch": "x86"}
    assert call("GET", "/api/v1/nodes/n1", admin).json()["labels"] == labels["labels"]
    assert change(admin, "n1", "labels", labels={"zone": None})["labels"]["zone"] == "of-the-agent"


def test_labels_and_taints_belong_to_the_present_node_of_a_reused_name(admin):
    """A42: a removed node is gone from every list but history."""
    old = make_node(name="n1", gpus=1)
    call("POST", "/api/v1/nodes/n1/drain", admin, {})
    assert call("DELETE", "/api/v1/nodes/n1", admin).status_code == 200
    for what in ("labels", "taints"):
        assert call("GET", f"/api/v1/nodes/n1/{what}", admin).status_code == 404
    change(admin, "n1", "labels", 404, labels={"zone": "a"})
    new = make_node(name="n1", gpus=1)
    change(admin, "n1", "labels", labels={"zone": "a"})
    change(admin, "n1", "taints", add=[TAINT])
    assert Node.objects.get(pk=new.id).admin_labels == {"zone": "a"}
    assert Node.objects.get(pk=new.id).taints == [TAINT]
    assert (Node.objects.get(pk=old.id).admin_labels, Node.objects.get(pk=old.id).taints) == ({}, [])


def test_agent_label_can_be_set_but_not_removed(admin):
    node = make_node(name="n1", gpus=1)
    Node.objects.filter(pk=node.id).update(labels={"arch": "x86"})
    refused = change(admin, "n1", "labels", 400, labels={"arch": None})
    assert [(row["field"], row["code"]) for row in refused["errors"]] == [("labels.arch", "reported_by_agent")]
    assert change(admin, "n1", "labels", labels={"arch": "arm"})["labels"] == {"arch": "arm"}


@pytest.mark.parametrize("labels", [{"a b": "x"}, {"": "x"}, {"a": "x y"}, {"container runtime": "yes"}])
def test_invalid_label_is_rejected_by_name(admin, labels):
    make_node(name="n1", gpus=1)
    [error] = change(admin, "n1", "labels", 400, labels=labels)["errors"]
    assert error["code"] == "invalid_label" and error["field"].startswith("labels.")


def test_taints_are_added_replaced_and_removed_by_key_and_effect(admin):
    make_node(name="n1", gpus=1)
    change(admin, "n1", "taints", add=[TAINT, {"key": "spot", "effect": "PreferNoSchedule"}])
    labels = change(admin, "n1", "taints", add=[{**TAINT, "value": "web"}])
    assert [(row["key"], row["value"]) for row in labels["taints"]] == [("dedicated", "web"), ("spot", "")]
    assert change(admin, "n1", "taints", remove=["dedicated:NoSchedule", "spot"]) == {"node": "n1", "taints": []}
    [error] = change(admin, "n1", "taints", 400, remove=["dedicated"])["errors"]
    assert (error["field"], error["code"]) == ("remove[0]", "unknown")


def test_unknown_effect_and_unknown_node_are_rejected(admin):
    make_node(name="n1", gpus=1)
    [error] = change(admin, "n1", "taints", 400, add=[{"key": "a", "effect": "NoExecute"}])["errors"]
    assert error["field"].startswith("add") and "NoExecute" in error["message"]
    change(admin, "nowhere", "taints", 404, add=[TAINT])
    change(admin, "nowhere", "labels", 404, labels={"a": "b"})


@pytest.mark.parametrize("value", ["", "0", "many", "100000"])
def test_min_gpus_taint_needs_a_number_of_gpus(admin, value):
    make_node(name="n1", gpus=1)
    [error] = change(admin, "n1", "taints", 400, add=[{"key": "min-gpus", "value": value}])["errors"]
    assert (error["field"], error["code"]) == ("add[0]", "invalid_taint")
    assert "the fewest GPUs" in error["message"]


def test_min_gpus_taint_reserves_a_node_for_large_jobs(user, tenant, admin):
    make_node(name="n1", gpus=4)
    change(admin, "n1", "taints", add=[{"key": "min-gpus", "value": "4"}])
    small, large = submit(user, tenant), submit(user, tenant, gpu_count=4)
    run_cycle()
    assert job(large)["state"] == "scheduled"
    reason = job(small)["reason"]
    assert reason["code"] == "taint" and "min-gpus=4:NoSchedule" in reason["sentence"]


def test_every_change_is_audited_and_a_dry_run_changes_nothing(admin):
    make_node(name="n1", gpus=1)
    assert call("PATCH", "/api/v1/nodes/n1/taints?dry_run=true", admin, {"add": [TAINT]}).status_code == 200
    assert Node.objects.get(name="n1").taints == []
    change(admin, "n1", "taints", add=[TAINT])
    change(admin, "n1", "labels", labels={"zone": "a"})
    entries = call("GET", "/api/v1/audit?action=node", admin).json()["items"]
    assert [(row["action"], row["before"], row["after"]) for row in entries] == [
        ("node.labels", {"zone": None}, {"zone": "a"}),
        ("node.taints", {"taints": []}, {"taints": ["dedicated=ml:NoSchedule"]}),
    ]


def test_job_waits_for_the_taint_with_that_reason_until_it_is_removed(user, tenant, admin):
    """A20: code, sentence, next step, and the change that starts it."""
    make_node(name="n1", gpus=2)
    change(admin, "n1", "taints", add=[TAINT])
    waiting = submit(user, tenant)
    tolerant = submit(user, tenant, tolerations=[Toleration(key="dedicated", value="ml")])
    run_cycle()
    assert job(tolerant)["state"] == "scheduled"
    reason = job(waiting)["reason"]
    assert reason["code"] == "taint"
    assert reason["sentence"] == (
        "excluded from the 1 node that would fit by taints that it does not tolerate: dedicated=ml:NoSchedule"
    )
    assert "--toleration" in reason["next_step"]
    answer = explain(waiting, identity_for(user))["counterfactual"]
    assert (answer["change"], answer["sentence"]) == (
        "tolerations",
        "with a toleration of dedicated=ml:NoSchedule it would start",
    )
    change(admin, "n1", "taints", remove=["dedicated"])
    run_cycle()
    assert job(waiting)["state"] == "scheduled"


def test_running_job_continues_when_its_node_is_tainted(user, tenant, admin):
    node = make_node(name="n1", gpus=2)
    running = submit(user, tenant)
    run_cycle()
    node.start_all()
    change(admin, "n1", "taints", add=[TAINT])
    run_cycle()
    assert job(running)["state"] == "running"


def test_job_takes_a_node_by_required_and_preferred_labels(user, tenant, admin):
    for number, labels in enumerate(({"zone": "a"}, {"zone": "b"}, {"zone": "b", "fast": "yes"}), 1):
        make_node(name=f"n{number}", gpus=1)
        change(admin, f"n{number}", "labels", labels=labels)
    required = Expression(key="zone", operator=LabelOperator.NOT_IN, values=["a"])
    preferred = Preference(key="fast", operator=LabelOperator.EXISTS, weight=10)
    affinity = NodeAffinity(required=[required], preferred=[preferred])
    jobs = [submit(user, tenant, node_affinity=affinity) for _ in range(3)]
    run_cycle()
    assert [job(one)["nodes"] for one in jobs] == [["n3"], ["n2"], []]
    assert job(jobs[2])["reason"]["code"] == "priority"
    [row] = query("SELECT considered FROM jobs_attempt WHERE job_id = %s", [jobs[0]])
    assert [(one["node"], one["preferred"]) for one in row["considered"]["candidates"]] == [("n3", 10), ("n2", 0)]


def test_array_elements_inherit_affinity_and_tolerations(user, tenant, admin):
    for name in ("n1", "n2"):
        make_node(name=name, gpus=1)
    change(admin, "n1", "taints", add=[TAINT])
    change(admin, "n1", "labels", labels={"zone": "a"})
    affinity = NodeAffinity(required=[Expression(key="zone", operator=LabelOperator.EXISTS)])
    fields = {"node_affinity": affinity, "tolerations": [Toleration(key="dedicated", value="ml")]}
    array = submit(user, tenant, array=ArrayRequest(count=2), **fields)
    run_cycle()
    [element] = representation.select("j.array_id = %s", [array])
    assert (element["state"], element["nodes"]) == ("scheduled", ["n1"])
    assert element["node_affinity"] == job(array)["node_affinity"]
    assert element["tolerations"] == [{"key": "dedicated", "operator": "Equal", "value": "ml", "effect": None}]


def test_submit_preview_considers_taints_and_preferences(user, tenant, admin):
    make_node(name="n1", gpus=1)
    change(admin, "n1", "taints", add=[TAINT])
    token = make_token(user)
    body = {"command": ["true"], "gpu_count": 1}
    labels = call("POST", "/api/v1/jobs/simulate", token, body).json()
    assert (labels["starts_now"], labels["reason"]["code"]) == (False, "taint")
    assert [(way["change"], way["to"]) for way in labels["alternatives"]] == [
        ("tolerations", "dedicated=ml:NoSchedule")
    ]
    tolerating = {**body, "tolerations": [{"key": "dedicated", "operator": "Exists"}]}
    assert call("POST", "/api/v1/jobs/simulate", token, tolerating).json()["starts_now"] is True


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tolerations": [{"operator": "Equal", "value": "x"}]}, "tolerations[0]"),
        ({"tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}, "tolerations[0]"),
        ({"tolerations": [{"key": "a"}] * 33}, "tolerations"),
        ({"node_affinity": {"required": [{"key": "a", "operator": "in"}]}}, "node_affinity.required[0]"),
        (
            {"node_affinity": {"preferred": [{"key": "a", "operator": "exists", "weight": 101}]}},
            "node_affinity.preferred[0].weight",
        ),
        ({"node_affinity": {"preferred": [{"key": "a b", "operator": "exists"}]}}, "node_affinity.preferred[0]"),
    ],
)
def test_invalid_affinity_is_rejected_by_its_field(user, tenant, fields, field):
    answer = call("POST", "/api/v1/jobs", make_token(user), {"command": ["x"], **fields})
    assert answer.status_code == 400
    assert [error["field"] for error in answer.json()["errors"]] == [field]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tolerations": [{"key": "a", "effect": "NoExecute"}]}, ("tolerations", "NoExecute")),
        ({"node_affinity": {"required": [{"key": "a", "operator": "gt"}]}}, ("node_affinity", "gt")),
        ({"node_affinity": {"wanted": []}}, ("wanted",)),
    ],
)
def test_unknown_operator_effect_or_field_is_named(user, tenant, fields, text):
    answer = call("POST", "/api/v1/jobs", make_token(user), {"command": ["x"], **fields})
    assert answer.status_code == 400
    [error] = answer.json()["errors"]
    assert all(word in f"{error['field']} {error['message']}" for word in text)


def test_request_too_large_for_its_required_nodes_is_rejected(user, tenant, admin):
    """A04"""
    for name, gpus in (("n1", 1), ("n2", 8)):
        make_node(name=name, gpus=gpus)
    change(admin, "n1", "labels", labels={"zone": "a"})
    body = {"command": ["x"], "gpu_count": 2}
    affinity = {"required": [{"key": "zone", "operator": "in", "values": ["a"]}]}
    answer = call("POST", "/api/v1/jobs", make_token(user), {**body, "node_affinity": affinity})
    assert (answer.status_code, answer.json()["code"]) == (422, "never_fits")
    assert call("POST", "/api/v1/jobs", make_token(user), body).status_code == 201
