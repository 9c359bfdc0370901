"""The state of each distinct request in a cycle: its shape, its minimum use, and the jobs for which it is full."""

from dataclasses import dataclass, field
from math import inf

from scheduling.engine.board.shapes import Shape
from scheduling.engine.limits.quotas import Use


@dataclass(slots=True)
class RequestGroups:
    """The state of each distinct request in this cycle. The board only fills up, so a failure is final.

    `full_for_long`: it fits for no job that outlives the promise. Beside bookings: `tried` requests, and `full_levels`:
    (request, whether it outlives the promise) -> the lowest level of bookings at which it fits no more.
    """

    shapes: list[Shape]
    minimum_uses: list[Use]
    full: set[int] = field(default_factory=set)
    full_for_long: set[int] = field(default_factory=set)
    tried: set[int] = field(default_factory=set)
    full_levels: dict[tuple[int, bool], int] = field(default_factory=dict)

    def is_full(self, number: int, level: int, is_lasting: bool) -> bool:
        """Return whether a request is known not to fit beside bookings, for jobs of a level that outlive the promise or
        not."""
        if number in self.full or level >= self.full_levels.get((number, False), inf):
            return True
        return is_lasting and level >= self.full_levels.get((number, True), inf)
