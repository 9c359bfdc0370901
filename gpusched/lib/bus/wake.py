"""Request a scheduling cycle. Any number of requests become one cycle (scheduling/worker/broker.py)."""

from django.db import transaction

from gpusched.lib.bus.notifier import notifier


def request_cycle() -> None:
    """Request a cycle at commit. Call it inside the transaction of the change. If the process is killed at that moment,
    the cycle runs at the next tick."""
    transaction.on_commit(notifier.request_cycle, robust=True)
