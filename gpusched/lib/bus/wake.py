"""Asks for a scheduling cycle; any number of requests become one cycle (scheduling/worker/broker.py)."""

from django.db import transaction

from gpusched.lib.bus.notifier import ringer


def request_cycle() -> None:
    """To be called inside the transaction of the change: it is asked for at commit. One that is lost, because the
    process was killed at that moment, costs the time to the next tick."""
    transaction.on_commit(ringer.ring_for_cycle, robust=True)
