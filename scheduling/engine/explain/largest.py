"""Finds the largest request that admission accepts near one that it refuses, by checking candidates."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from scheduling.engine.board.shapes import is_model, is_suitable, rank_counts
from scheduling.engine.explain.inventory import Devices, Types, fits, holds, minimum_use, offers, suitable_gpus
from scheduling.engine.limits.quotas import Limits
from scheduling.engine.model import Policy, Request

# The amounts of a request that can be too large, in the order in which a reduction is preferred among equals.
_AMOUNTS = ("gpu_count", "gpu_memory_mb", "cpu_milli", "memory_mb")


class Bounds(NamedTuple):
    """The limits of a request besides the nodes. `limits`: of its tenant and user, without those per model; `models`:
    (word, GPUs) of the limits per model; `online_gpus`: the online capacity, None: not limited by it."""

    limits: Limits = ()
    models: tuple[tuple[str, int], ...] = ()
    online_gpus: int | None = None


class Largest(NamedTuple):
    """A request that admission accepts, and would refuse with one more of any amount, except of GPUs if `more_gpus` is
    true."""

    request: Request
    more_gpus: bool = False


def is_possible(request: Request, types: Types, policy: Policy, bounds: Bounds) -> bool:
    """Return whether admission accepts the request: within the bounds, and on these nodes when they are empty."""
    return _is_bounded(request, types, policy, bounds) and is_within_models(request, types, policy, bounds)


def is_within_models(request: Request, types: Types, policy: Policy, bounds: Bounds) -> bool:
    """Return whether it fits on the GPUs that the limits per model leave."""
    usable = usable_types(request, types, policy, bounds)
    return request.gpu_count <= _usable_gpus(request, types, policy, bounds) and fits(request, usable, policy)


def usable_types(request: Request, types: Types, policy: Policy, bounds: Bounds) -> Types:
    """Return the types of nodes, each with at most as many suitable GPUs of each model as its limit allows."""
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
    """Return the largest possible request near one that is not possible; None: no smaller request is possible either.

    If reducing one amount is enough, the amount that keeps the largest part is reduced; otherwise the GPUs first, then
    their memory, CPU and memory. Every other amount then grows as far as it can.
    """
    search = _Search(types, policy, bounds)
    reduced = search.with_one_reduced(request) or search.with_all_reduced(request)
    return None if reduced is None else search.grown(reduced, request)


def most_gpus(request: Request, types: Types, policy: Policy, bounds: Bounds) -> int:
    """Return the maximum of GPUs with which the rest of the request is possible, even above the requested number; 0:
    none."""
    return _Search(types, policy, bounds).maximum(request, "gpu_count", None) or 0


class _Search:
    def __init__(self, types: Types, policy: Policy, bounds: Bounds) -> None:
        self.types, self.policy, self.bounds = types, policy, bounds

    def is_possible(self, request: Request) -> bool:
        return is_possible(request, self.types, self.policy, self.bounds)

    def with_one_reduced(self, request: Request) -> Request | None:
        """Return the request with one amount reduced: the one that keeps the largest part of the requested amount."""
        if not rank_counts(request, self.policy):
            gpus = self.maximum(request, "gpu_count", None)
            return None if gpus is None else replace(request, gpu_count=gpus)
        best: tuple[Fraction, Request] | None = None
        for name in _AMOUNTS:
            requested = getattr(request, name)
            amount = self.maximum(request, name, requested) if requested else None
            if amount and (best is None or Fraction(amount, requested) > best[0]):
                best = Fraction(amount, requested), _with(request, name, amount)
        return best[1] if best else None

    def with_all_reduced(self, request: Request) -> Request | None:
        """Return the smallest request of this form, with each amount in turn grown as far as it fits."""
        candidate = self._smallest(request)
        if candidate is None:
            return None
        for name in _AMOUNTS:
            requested = getattr(request, name)
            # If the ranks do not divide the GPUs, the next number that they divide may be larger than requested.
            is_capped = name != "gpu_count" or rank_counts(request, self.policy)
            amount = self.maximum(candidate, name, requested if is_capped else None) if requested else None
            if amount is not None:
                candidate = _with(candidate, name, amount)
        return candidate

    def _smallest(self, request: Request) -> Request | None:
        """Return the request with as few GPUs as its ranks need, or with fewer ranks.

        A small part of a shared GPU takes less of a limit than a whole GPU.
        """
        little = (1, None) if request.shared and request.gpu_memory_mb else (None,)
        for ranks in range(request.ranks or 1, 0, -1):
            for gpu_memory_mb in little:
                candidate = replace(request, gpu_memory_mb=gpu_memory_mb, cpu_milli=0, memory_mb=0)
                gpus = min(request.gpu_count, ranks) and ranks
                candidate = replace(candidate, gpu_count=gpus, ranks=None if request.ranks is None else ranks)
                if self.is_possible(candidate):
                    return candidate
        return None

    def grown(self, reduced: Request, requested: Request) -> Largest:
        """Return the request with every amount that was not reduced as large as possible.

        The GPUs stay as they are if more of them would allow more of a reduced amount: CPU and memory of a gang are
        split over its ranks.
        """
        short = [name for name in _AMOUNTS if (getattr(reduced, name) or 0) < (getattr(requested, name) or 0)]
        candidate, more_gpus = reduced, False
        if reduced.gpu_count and "gpu_count" not in short:
            gpus = self.maximum(reduced, "gpu_count", None) or reduced.gpu_count
            wider = replace(reduced, gpu_count=gpus)
            more_gpus = any(self.is_possible(_with(wider, name, (getattr(wider, name) or 0) + 1)) for name in short)
            candidate = reduced if more_gpus else wider
        for name in _AMOUNTS[1:]:
            if name not in short and (candidate.gpu_count or name != "gpu_memory_mb"):
                amount = self.maximum(candidate, name, None)
                candidate = candidate if amount is None else _with(candidate, name, amount)
        return Largest(candidate, more_gpus)

    def maximum(self, request: Request, name: str, at_most: int | None) -> int | None:
        """Return the largest amount of this name up to `at_most` (None: any) that is possible with the rest; None:
        none."""
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
        """Return the maximum of GPUs.

        A gang is searched by its number of ranks: it may fit with more GPUs and not with fewer, because each rank takes
        its part of the CPU and the memory.
        """
        total = _usable_gpus(request, self.types, self.policy, self.bounds)
        node_offers = offers(request, usable_types(request, self.types, self.policy, self.bounds), self.policy)
        maximum = _last(
            0,
            total if at_most is None else min(total, at_most),
            lambda gpus: _is_bounded(replace(request, gpu_count=gpus), self.types, self.policy, self.bounds),
        )
        best = 0
        for ranks in self._rank_counts(request, maximum or 0):
            if ranks * ((maximum or 0) // ranks) <= best:
                break
            each = _last(
                1,
                (maximum or 0) // ranks,
                lambda gpus: holds(replace(request, gpu_count=gpus * ranks), node_offers, ranks, self.policy),  # noqa: B023
            )
            best = max(best, (each or 0) * ranks)
        return best or None

    def _rank_counts(self, request: Request, gpus: int) -> Iterator[int]:
        """Yield the numbers of ranks that up to so many GPUs may be split into, those that use the most GPUs first."""
        if request.ranks is not None or not (request.gang and self.policy.gangs):
            yield request.ranks or 1
            return
        yield from sorted(range(1, gpus + 1), key=lambda ranks: (-(gpus // ranks * ranks), ranks))


def _is_bounded(request: Request, types: Types, policy: Policy, bounds: Bounds) -> bool:
    """Return whether the request is within the bounds; a request that is larger in any amount is so only if this one
    is."""
    if bounds.online_gpus is not None and request.gpu_count > bounds.online_gpus:
        return False
    if not bounds.limits:
        return True
    use = minimum_use(request, types, policy)
    return all(dimension.amount(use) <= limit for dimension, limit in bounds.limits)


def _usable_gpus(request: Request, types: Types, policy: Policy, bounds: Bounds) -> int:
    """Return the suitable GPUs of all nodes, of each limited model at most its limit."""
    if not bounds.models:
        return sum(suitable_gpus(request, node_type, policy) * count for node_type, count in types)
    devices = tuple((kind, number * count) for node_type, count in types for kind, number in node_type.devices)
    return sum(count for _, count in _capped(request, devices, policy, bounds.models))


def _capped(request: Request, devices: Devices, policy: Policy, models: tuple[tuple[str, int], ...]) -> Devices:
    """Return the suitable devices, of each limited model at most its limit.

    Those that the fewest limits count come first, so that as many as possible remain.
    """
    remaining = dict(models)
    limits = {kind: [word for word in remaining if is_model(word, kind.model)] for kind, _ in devices}
    capped = []
    for kind, count in sorted(devices, key=lambda entry: (len(limits[entry[0]]), entry)):
        if not is_suitable(request, kind, policy):
            continue
        usable = min([count, *(remaining[word] for word in limits[kind])])
        for word in limits[kind]:
            remaining[word] -= usable
        if usable:
            capped.append((kind, usable))
    return tuple(sorted(capped))


def _with(request: Request, name: str, amount: int) -> Request:
    return replace(request, **{name: amount})  # type: ignore[arg-type]


def _last(low: int, high: int, is_true: Callable[[int], bool]) -> int | None:
    """Return the largest number from `low` to `high` for which the monotone predicate is true; None: for none."""
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
