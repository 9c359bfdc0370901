"""Groups of pending reasons."""

from gpusched.protocol.reasons import Pending

# In the order of the page.
GROUPS = ("next", "quota", "capacity", "you", "held")


GROUP_ELSE = "capacity"


_GROUP = {
    "next": (Pending.STARTING, Pending.SCHEDULER_BEHIND, Pending.RECLAIM_PENDING),
    "quota": (Pending.QUOTA_WAIT, Pending.TENANT_LIMIT, Pending.BUDGET, Pending.USER_CAP),
    "you": (
        Pending.NEVER_FITS,
        Pending.CONSTRAINT,
        Pending.NOT_BEFORE,
        Pending.RETRY_BACKOFF,
        Pending.DEPENDENCY,
        Pending.MAX_PARALLEL,
    ),
}


GROUP_OF = {str(code): group for group, codes in _GROUP.items() for code in codes}


def group_of(state: str, code: str) -> str:
    """Return the group of a waiting job: one of GROUPS."""
    return "held" if state == "held" else GROUP_OF.get(code, GROUP_ELSE)
