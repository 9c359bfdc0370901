"""Where the ranks of a gang meet."""

import pytest

from gpusched.protocol.agent_messages import Run
from nodes.models import Node
from tests.factories import FakeAgent, make_member, make_node, make_tenant, run_cycle, submit

pytestmark = pytest.mark.django_db


def addresses_of_a_gang(boots: dict[str, str]) -> dict[str, str | None]:
    """Return the address that each node's rank gets, of nodes with one host name and these ids of their boots."""
    nodes: dict[str, FakeAgent] = {name: make_node(name=name, gpus=4) for name in boots}
    for name, boot in boots.items():
        Node.objects.filter(name=name).update(boot_id=boot)
    tenant = make_tenant()
    submit(make_member(tenant), tenant, gpu_count=8, gang_scheduling=True)
    run_cycle()
    found = {}
    for name, node in nodes.items():
        [order] = node.sync(boot_id=boots[name]).assignments
        assert isinstance(order, Run)
        found[f"{name} {order.spec.rank}"] = order.spec.master_addr
    return found


def test_gang_meets_at_another_machine_with_the_same_host_name_by_the_name_of_the_node() -> None:
    """As copies of one image have it, joined with --name."""
    found = addresses_of_a_gang({"gpu-1": "boot-1", "gpu-2": "boot-2"})
    [head] = [name.split()[0] for name in found if name.endswith(" 0")]
    assert {name.split()[1]: address for name, address in found.items()} == {"0": "127.0.0.1", "1": head}


def test_gang_on_nodes_of_one_machine_meets_at_loopback() -> None:
    """As a pretend fleet has it."""
    found = addresses_of_a_gang({"gpu-1": "boot-1", "gpu-2": "boot-1"})
    assert set(found.values()) == {"127.0.0.1"}
