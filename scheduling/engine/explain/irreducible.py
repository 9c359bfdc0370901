"""Finds an irreducible subset of a set that is enough: without any one of its items it is no longer enough."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class OutOfTries(Exception):
    """Too many tries; also raised by an `is_enough` that costs too much."""


def irreducible(
    items: Sequence[T], is_enough: Callable[[Sequence[T]], bool], tries: int = 5_000
) -> tuple[T, ...] | None:
    """Return a subset of the items, in their order, that is enough while no smaller part of it with one item less is.

    Earlier items are preferred. None: all items together are not enough, or the tries do not suffice.

    QuickXplain (Junker, AAAI 2004): for k of n items about 2k log(n/k) tries, if more items are never less enough. A
    plan does not guarantee that, so the result is tried again with each item left out in turn.
    """
    search = _Search(items, is_enough, tries)
    try:
        return search.result()
    except OutOfTries:
        return None


class _Search(Generic[T]):
    def __init__(self, items: Sequence[T], is_enough: Callable[[Sequence[T]], bool], tries: int) -> None:
        self._items, self._is_enough, self._tries = items, is_enough, tries

    def result(self) -> tuple[T, ...] | None:
        if not self._try(range(len(self._items))):
            return None
        part = sorted(self._needed([], list(range(len(self._items))), is_new=True))
        if not self._try(part):
            return None
        left_out = 0
        while left_out < len(part):
            without = part[:left_out] + part[left_out + 1 :]
            if self._try(without):
                part, left_out = without, 0
            else:
                left_out += 1
        return tuple(self._items[number] for number in part)

    def _needed(self, beside: list[int], numbers: list[int], *, is_new: bool) -> list[int]:
        """Return those of the numbers that are needed beside the others. `is_new`: the others were not tried yet."""
        if is_new and self._try(beside):
            return []
        if len(numbers) == 1:
            return numbers
        middle = len(numbers) // 2
        earlier, later = numbers[:middle], numbers[middle:]
        of_later = self._needed(beside + earlier, later, is_new=True)
        return self._needed(beside + of_later, earlier, is_new=bool(of_later)) + of_later

    def _try(self, numbers: Sequence[int]) -> bool:
        if self._tries <= 0:
            raise OutOfTries
        self._tries -= 1
        return self._is_enough([self._items[number] for number in sorted(numbers)])
