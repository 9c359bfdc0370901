"""Arrays for tests: submit one, and end elements."""

from gpusched.protocol.arrays import ArrayRequest
from tests.factories import run_cycle, submit


def submit_array(user, tenant, count, max_parallel=None, **fields):
    return submit(user, tenant, array=ArrayRequest(count=count, max_parallel=max_parallel), name="sweep", **fields)


def ends(node, keys, code=0):
    node.end(*keys, exit_code=code)
    run_cycle()
