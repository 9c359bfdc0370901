"""Finds the largest request that admission accepts near one that it refuses, by asking the same question of others."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from scheduling.engine.board.shapes import is_model, is_suitable, rank_counts
from scheduling.engine.explain.inventory import Devices, Types, fits, holds, minimum_use, offers, suitable_gpus
from scheduling.engine.limits.quotas import Limits
from scheduling.engine.model import Policy, Request

# What a request can ask for too much of, in the order in which a reduction is preferred among equals.
_AMOUNTS = ("gpu_count", "gpu_memory_mb", "cpu_milli", "memory_mb")


class Bounds(NamedTuple):
    """What bounds a request besides the nodes. `limits`: of its tenant and user, without those per model; `models`:
    (word, GPUs) of the limits per model; `online_gpus`: the online part, None: the job is in no part."""

    limits: Limits = ()
    models: tuple[tuple[str, int], ...] = ()
    online_gpus: int | None = None


class Largest(NamedTuple):
    """`request`: accepted, and refused with one more of any amount, except of GPUs where `more_gpus` is true."""

    request: Request
    more_gpus: bool = False


def is_possible(request: Request, types: Types, policy: Policy, bounds: Bounds) -> bool:
    """Whether admission accepts the request: within the bounds, and on these nodes when they are empty."""
    return _is_bounded(request, types, policy, bounds) and is_within_models(request, types, policy, bounds)


def is_within_models(request: Request, types: Types, policy: Policy, bounds: Bounds) -> bool:
    """Whether it fits on the GPUs that the limits per model leave."""
    usable = usable_types(request, types, policy, bounds)
    return request.gpu_count <= _usable_gpus(request, types, policy, bounds) and fits(request, usable, policy)


def usable_types(request: Request, types: Types, policy: Policy, bounds: Bounds) -> Types:
    """The types of nodes, each with only as many suitable GPUs of each model as its limit allows."""
    if not (bounds.models and request.gpu_count):
        return types
    return tuple(
        (
            node_type._replace(
                devices=_capped(request, node_type.devices, policy, bounds.models),
                islands=tuple(_capped(request, group, policy, bounds.models) for group in node_type.islands),
                numas=tuple(_capped(request, group, policy, bounds.models) for group in node_type.numas),
            ),
            count,
        )
        for node_type, count in types
    )


@lru_cache(1 << 10)
def largest(request: Request, types: Types, policy: Policy, bounds: Bounds) -> Largest | None:
    """The largest possible request near one that is not possible; None: no smaller request is possible either.

    One amount is reduced if that is enough, the one that keeps the most of itself; otherwise the GPUs first, then
    their memory, CPU and memory. Every other amount then grows as far as it can.
    """
    search = _Search(types, policy, bounds)
    reduced = search.with_one_reduced(request) or search.with_all_reduced(request)
    return None if reduced is None else search.grown(reduced, request)


def most_gpus(request: Request, types: Types, policy: Policy, bounds: Bounds) -> int:
    """The most GPUs with which the rest of the request is possible; 0: none. Above the number asked for, too."""
    return _Search(types, policy, bounds).most(request, "gpu_count", None) or 0


class _Search:
    def __init__(self, types: Types, policy: Policy, bounds: Bounds) -> None:
        self.types, self.policy, self.bounds = types, policy, bounds

    def is_possible(self, request: Request) -> bool:
        return is_possible(request, self.types, self.policy, self.bounds)

    def with_one_reduced(self, request: Request) -> Request | None:
        """The request with the one reduced amount that keeps the largest part of what is asked for."""
        if not rank_counts(request, self.policy):
            gpus = self.most(request, "gpu_count", None)
            return None if gpus is None else replace(request, gpu_count=gpus)
        best: tuple[Fraction, Request] | None = None
        for name in _AMOUNTS:
            asked = getattr(request, name)
            amount = self.most(request, name, asked) if asked else None
            if amount and (best is None or Fraction(amount, asked) > best[0]):
                best = Fraction(amount, asked), _with(request, name, amount)
        return best[1] if best else None

    def with_all_reduced(self, request: Request) -> Request | None:
        """The smallest request of this form, and then of each amount in turn as much as fits of what is asked for."""
        found = self._smallest(request)
        if found is None:
            return None
        for name in _AMOUNTS:
            asked = getattr(request, name)
            # Of an uneven number of GPUs the next even one may be the larger.
            is_capped = name != "gpu_count" or rank_counts(request, self.policy)
            amount = self.most(found, name, asked if is_capped else None) if asked else None
            if amount is not None:
                found = _with(found, name, amount)
        return found

    def _smallest(self, request: Request) -> Request | None:
        """With as few GPUs as its ranks need, or with fewer ranks; of a shared GPU a little takes less of a limit than
        the whole of it does."""
        little = (1, None) if request.shared and request.gpu_memory_mb else (None,)
        for ranks in range(request.ranks or 1, 0, -1):
            for gpu_memory_mb in little:
                found = replace(request, gpu_memory_mb=gpu_memory_mb, cpu_milli=0, memory_mb=0)
                gpus = min(request.gpu_count, ranks) and ranks
                found = replace(found, gpu_count=gpus, ranks=None if request.ranks is None else ranks)
                if self.is_possible(found):
                    return found
        return None

    def grown(self, reduced: Request, asked: Request) -> Largest:
        """Every amount that was not reduced, as large as it can be. The GPUs stay as they are if more of them would
        allow more of what was reduced: CPU and memory of a gang are split over its ranks."""
        short = [name for name in _AMOUNTS if (getattr(reduced, name) or 0) < (getattr(asked, name) or 0)]
        found, more_gpus = reduced, False
        if reduced.gpu_count and "gpu_count" not in short:
            gpus = self.most(reduced, "gpu_count", None) or reduced.gpu_count
            wider = replace(reduced, gpu_count=gpus)
            more_gpus = any(self.is_possible(_with(wider, name, (getattr(wider, name) or 0) + 1)) for name in short)
            found = reduced if more_gpus else wider
        for name in _AMOUNTS[1:]:
            if name not in short and (found.gpu_count or name != "gpu_memory_mb"):
                amount = self.most(found, name, None)
                found = found if amount is None else _with(found, name, amount)
        return Largest(found, more_gpus)

    def most(self, request: Request, name: str, at_most: int | None) -> int | None:
        """The largest amount of this name up to `at_most` (None: any) that is possible beside the rest; None: none."""
        if name == "gpu_count":
            return self._most_gpus(request, at_most)
        return _last(
            1 if name == "gpu_memory_mb" else 0,
            min(at_most or 1 << 62, self._ceiling(request, name)),
            lambda amount: self.is_possible(_with(request, name, amount)),
        )

    def _ceiling(self, request: Request, name: str) -> int:
        if name == "gpu_memory_mb":
            return max((kind.memory_mb for node_type, _ in self.types for kind, _ in node_type.devices), default=0)
        all_nodes = [(getattr(node_type, name), count) for node_type, count in self.types]
        if request.gang and self.policy.gangs:
            return sum(amount * count for amount, count in all_nodes)
        return max((amount for amount, _ in all_nodes), default=0)

    def _most_gpus(self, request: Request, at_most: int | None) -> int | None:
        """A gang is searched by its number of ranks: it may fit with more GPUs where it does not with fewer, because
        each rank takes its part of the CPU and the memory."""
        total = _usable_gpus(request, self.types, self.policy, self.bounds)
        found = offers(request, usable_types(request, self.types, self.policy, self.bounds), self.policy)
        most = _last(
            0,
            total if at_most is None else min(total, at_most),
            lambda gpus: _is_bounded(replace(request, gpu_count=gpus), self.types, self.policy, self.bounds),
        )
        best = 0
        for ranks in self._rank_counts(request, most or 0):
            if ranks * ((most or 0) // ranks) <= best:
                break
            each = _last(
                1,
                (most or 0) // ranks,
                lambda gpus: holds(replace(request, gpu_count=gpus * ranks), found, ranks, self.policy),  # noqa: B023
            )
            best = max(best, (each or 0) * ranks)
        return best or None

    def _rank_counts(self, request: Request, gpus: int) -> Iterator[int]:
        """Into how many ranks up to so many GPUs may be split, those with which the most GPUs are used first."""
        if request.ranks is not None or not (request.gang and self.policy.gangs):
            yield request.ranks or 1
            return
        yield from sorted(range(1, gpus + 1), key=lambda ranks: (-(gpus // ranks * ranks), ranks))


def _is_bounded(request: Request, types: Types, policy: Policy, bounds: Bounds) -> bool:
    """Of two requests of which one is larger in any amount, the larger one is bounded only if the other is."""
    if bounds.online_gpus is not None and request.gpu_count > bounds.online_gpus:
        return False
    if not bounds.limits:
        return True
    use = minimum_use(request, types, policy)
    return all(dimension.amount(use) <= limit for dimension, limit in bounds.limits)


def _usable_gpus(request: Request, types: Types, policy: Policy, bounds: Bounds) -> int:
    """Suitable GPUs of all nodes, of each limited model as many as its limit allows."""
    if not bounds.models:
        return sum(suitable_gpus(request, node_type, policy) * count for node_type, count in types)
    devices = tuple((kind, number * count) for node_type, count in types for kind, number in node_type.devices)
    return sum(count for _, count in _capped(request, devices, policy, bounds.models))


def _capped(request: Request, devices: Devices, policy: Policy, models: tuple[tuple[str, int], ...]) -> Devices:
    """The suitable devices, of each limited model at most its limit. Those that the fewest limits count come first, so
    that as many as possible are left."""
    left = dict(models)
    words = {kind: [word for word in left if is_model(word, kind.model)] for kind, _ in devices}
    found = []
    for kind, count in sorted(devices, key=lambda one: (len(words[one[0]]), one)):
        if not is_suitable(request, kind, policy):
            continue
        usable = min([count, *(left[word] for word in words[kind])])
        for word in words[kind]:
            left[word] -= usable
        if usable:
            found.append((kind, usable))
    return tuple(sorted(found))


def _with(request: Request, name: str, amount: int) -> Request:
    return replace(request, **{name: amount})  # type: ignore[arg-type]


def _last(low: int, high: int, is_true: Callable[[int], bool]) -> int | None:
    """The largest number from `low` to `high` for which it is true, when it is true up to there; None: of none."""
    if high < low or not is_true(low):
        return None
    if is_true(high):
        return high
    while high - low > 1:
        middle = (low + high) // 2
        if is_true(middle):
            low = middle
        else:
            high = middle
    return low
