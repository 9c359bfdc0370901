"""The reason of a request that no node matches names the models and labels that exist instead."""

from typing import Any

from gpusched.protocol import reasons
from scheduling.engine.model import Node
from tests.engine.scenario import cluster, decide, gpu, job, node, reason

H100 = [gpu(100, model="NVIDIA H100")]


def sentence(*nodes: Node, **request: Any) -> str:
    result = reason(decide(cluster(*nodes, jobs=[job(1, gpus=1, **request)])), 1)
    assert result.code == "constraint"
    return reasons.sentence(result.code, result.evidence)


def test_an_unknown_model_names_the_models_of_the_cluster() -> None:
    text = sentence(node(1, gpus=H100), node(2), node(3), gpu_models=("B200",))
    assert text == "no node matches GPU model B200; present: NVIDIA A100-SXM4-80GB, NVIDIA H100"


def test_an_unknown_value_of_a_label_names_a_few_that_exist() -> None:
    nodes = [node(n, labels={"zone": f"a{n}"}) for n in range(1, 8)]
    text = sentence(*nodes, node_selector=(("zone", "b"),))
    assert text == "no node matches label zone=b; present: zone=a1, zone=a2, zone=a3, zone=a4, zone=a5 and 2 more"


def test_what_exists_though_not_on_one_node_is_not_named() -> None:
    nodes = node(1, labels={"zone": "a"}), node(2, gpus=0, labels={"zone": "b"})
    text = sentence(*nodes, node_selector=(("zone", "b"),), gpu_models=("A100",))
    assert text == "no node matches label zone=b with GPU model A100"
