"""Taints of nodes, tolerations of jobs and expressions about node labels, with the rules of Kubernetes."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

NO_SCHEDULE, PREFER_NO_SCHEDULE = "NoSchedule", "PreferNoSchedule"
# The key of a taint that keeps a node for large jobs; its value is the fewest GPUs of a job that tolerates it.
MIN_GPUS = "min-gpus"
IN, NOT_IN, EXISTS, DOES_NOT_EXIST = "in", "notin", "exists", "doesnotexist"


class Taint(NamedTuple):
    """A mark that keeps jobs off a node. `effect`: NoSchedule, or PreferNoSchedule where it is only avoided."""

    key: str
    value: str
    effect: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class Toleration(NamedTuple):
    """Taints that a job accepts. `value` None: any value (Exists). `key` empty: any key. `effect` empty: any effect."""

    key: str = ""
    value: str | None = None
    effect: str = ""


class Expression(NamedTuple):
    """A condition on the labels of a node. `values` is empty for exists and doesnotexist."""

    key: str
    operator: str
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.operator in (IN, NOT_IN):
            return f"{self.key} {self.operator} ({', '.join(self.values)})"
        return self.key if self.operator == EXISTS else f"!{self.key}"


class Preference(NamedTuple):
    """A condition that a node should meet, and how much that counts."""

    weight: int
    expression: Expression


def is_large_enough(taint: Taint, gpu_count: int) -> bool:
    """Return whether the taint is a `min-gpus` taint for jobs of this size."""
    is_number = taint.value.isascii() and taint.value.isdigit()
    return taint.key == MIN_GPUS and is_number and gpu_count >= int(taint.value)


def is_tolerated(taint: Taint, tolerations: Iterable[Toleration], gpu_count: int) -> bool:
    """Return whether a job with so many GPUs accepts the taint, by its size or by a toleration."""
    return is_large_enough(taint, gpu_count) or any(
        toleration.key in ("", taint.key)
        and toleration.value in (None, taint.value)
        and toleration.effect in ("", taint.effect)
        for toleration in tolerations
    )


def untolerated(
    taints: Iterable[Taint], tolerations: Iterable[Toleration], gpu_count: int, effect: str = NO_SCHEDULE
) -> tuple[Taint, ...]:
    """Return the taints with this effect that a job with these tolerations and so many GPUs does not accept."""
    tolerations = tuple(tolerations)
    return tuple(
        taint for taint in taints if taint.effect == effect and not is_tolerated(taint, tolerations, gpu_count)
    )


def is_met(expression: Expression, labels: Mapping[str, str]) -> bool:
    """Return whether the labels meet the condition. A node without the key meets notin."""
    value = labels.get(expression.key)
    if expression.operator == IN:
        return value is not None and value in expression.values
    if expression.operator == NOT_IN:
        return value is None or value not in expression.values
    return (value is not None) == (expression.operator == EXISTS)


def tolerating(taints: Iterable[Taint]) -> tuple[Toleration, ...]:
    """Return the narrowest tolerations that cover these taints."""
    return tuple(Toleration(taint.key, taint.value, taint.effect) for taint in taints)
