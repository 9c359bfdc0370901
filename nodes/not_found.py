"""The error for the name of a node that does not exist."""

from gpusched.lib.api.problems import Problem, not_found
from gpusched.lib.times import readable
from nodes.models import Node


def absent(name: str) -> Problem:
    """Return a 404 for a name that no node has. It names the time when a node of this name was removed."""
    latest = Node.objects.filter(name=name).exclude(removed_at=None) if "\x00" not in name else Node.objects.none()
    removed_at = latest.order_by("-removed_at").values_list("removed_at", flat=True).first()
    if removed_at is None:
        return not_found(f"node '{name[:253]}'", "see gpusched nodes")
    detail = f"node '{name}' was removed by an admin at {readable(removed_at)}; its history stays"
    return Problem(404, "not_found", detail, next_step="see gpusched nodes for the existing nodes")
