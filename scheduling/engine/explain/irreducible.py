"""Finds an irreducible part of a set that is enough: without any one of its items it is not enough any more."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class OutOfTries(Exception):
    """Too many tries; also raised by an `is_enough` that costs too much."""


def irreducible(
    items: Sequence[T], is_enough: Callable[[Sequence[T]], bool], tries: int = 5_000
) -> tuple[T, ...] | None:
    """A part of the items, in their order, that is enough while no smaller part of it with one item less is. Earlier
    items are preferred. None: all of them are not enough, or that many tries do not find out.

    QuickXplain (Junker, AAAI 2004): for k of n items about 2k log(n/k) tries, if more items are never less enough. As a
    plan does not promise that, the result is tried again, each item left out in turn.
    """
    search = _Search(items, is_enough, tries)
    try:
        return search.found()
    except OutOfTries:
        return None


class _Search(Generic[T]):
    def __init__(self, items: Sequence[T], is_enough: Callable[[Sequence[T]], bool], tries: int) -> None:
        self._items, self._is_enough, self._tries = items, is_enough, tries

    def found(self) -> tuple[T, ...] | None:
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
        """Those of the numbers that are needed beside the others. `is_new`: these have not been tried yet."""
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
