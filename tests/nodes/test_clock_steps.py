"""Steps of the clock of the database's host."""

import pytest

from gpusched.lib.db.sql import execute, rows
from gpusched.protocol.states import NodeIntent
from nodes.health import auto_cordon, missing_users
from nodes.health.clock_steps import begin_anew
from nodes.health.cordon import set_intent
from nodes.models import Node
from nodes.redaction import AUTO_CORDON_NOTE
from tests.factories import make_node

pytestmark = pytest.mark.django_db


def test_cordon_of_the_server_ends_after_the_clock_was_set_back():
    """It began while the clock was ahead by a month: the node would stay closed for that long."""
    node = make_node().name
    set_intent(node, NodeIntent.CORDONED, f"{AUTO_CORDON_NOTE}2 node faults: jobs 1, 2")
    execute("UPDATE nodes_incident SET since = since + interval '30 days' WHERE until IS NULL")
    assert begin_anew() == 1
    execute("UPDATE nodes_incident SET since = since - interval '1 hour' WHERE until IS NULL")
    assert auto_cordon.uncordon_due() == 1
    assert begin_anew() == 0


def test_node_that_lacked_a_user_is_tried_again_after_the_clock_was_set_back(tenant):
    make_node()
    [node] = Node.objects.all()
    execute(
        "INSERT INTO nodes_missinguser (node_id, unix_user, detail, since)"
        " VALUES (%s, %s, '', clock_timestamp() + interval '30 days')",
        [node.pk, tenant.unix_user],
    )
    assert missing_users.current() != []
    begin_anew()
    assert missing_users.current() == []
    assert rows("SELECT FROM nodes_missinguser") == []
