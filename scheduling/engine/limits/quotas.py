"""Computes how much a job takes of each limit of its tenant, and which limit it exceeds by itself."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple

from scheduling.engine.board.shapes import is_model
from scheduling.engine.model import RankPlacement, Request, Tenant


class Use(NamedTuple):
    """The amounts that a job takes of its tenant's limits.

    A device counts as one GPU, shared or not. `gpu_memory_mb`: for a device held whole all its memory (the requested
    amount if the device's is unknown), for a shared one the job's part. `models`: (models, GPUs), each GPU of one of
    these models; a job that is placed has one model for each.
    """

    gpus: int
    gpu_memory_mb: int
    cpu_milli: int
    memory_mb: int
    jobs: int = 1
    models: tuple[tuple[tuple[str, ...], int], ...] = ()


class Dimension(NamedTuple):
    """A quantity that a limit counts, as sentences name it: `unit` of position `of` in Use make one; or GPUs of one
    `model`.

    `code`: the reason of a job that waits for it.
    """

    name: str
    of: int
    unit: int = 1
    model: str = ""
    code: str = "quota_wait"

    def amount(self, use: Use) -> int:
        if not self.model:
            amount = use[self.of]
            assert isinstance(amount, int)
            return amount
        return sum(count for names, count in use.models if _is_named(self.model, names))

    def to_unit(self, amount: int) -> int | float:
        """Return an amount in the unit of its sentence: 1500 millicores are 1.5 CPU cores."""
        quotient, remainder = divmod(amount, self.unit)
        return amount / self.unit if remainder else quotient


GPUS = Dimension("GPUs", 0)
GPU_MEMORY = Dimension("MiB of GPU memory", 1)
CPU_CORES = Dimension("CPU cores", 2, unit=1000)
MEMORY = Dimension("MiB of memory", 3)
JOBS = Dimension("concurrent jobs", 4)
USER_GPUS = Dimension("GPUs per user", 0, code="user_cap")
_OF_MODELS = "GPUs under its limits per model"
EACH_MODEL = "GPUs of each limited model"
Limits = tuple[tuple[Dimension, int], ...]


class Excess(NamedTuple):
    """A limit that a request exceeds when nothing else runs, in the units of its sentence."""

    dimension: Dimension
    requested: int | float
    limit: int | float


def limits_of(tenant: Tenant) -> Limits:
    """Return the limits that a tenant has for all its jobs together."""
    limits = (
        (GPUS, tenant.max_gpus),
        (GPU_MEMORY, tenant.max_gpu_memory_mb),
        (CPU_CORES, tenant.max_cpu_milli),
        (MEMORY, tenant.max_memory_mb),
        (JOBS, tenant.max_concurrent_jobs),
        *((Dimension(f"{model} GPUs", 0, model=model), limit) for model, limit in sorted(tenant.max_gpus_by_model)),
    )
    return tuple((dimension, limit) for dimension, limit in limits if limit is not None)


def limits_per_user(tenant: Tenant) -> Limits:
    """Return the limits of the jobs of each of its users."""
    return () if tenant.max_gpus_per_user is None else ((USER_GPUS, tenant.max_gpus_per_user),)


def excess(tenant: Tenant, use: Use) -> Excess | None:
    """Return the first limit that a job exceeds by itself."""
    for dimension, limit in (*limits_of(tenant), *limits_per_user(tenant)):
        if dimension.amount(use) > limit:
            return Excess(dimension, dimension.to_unit(dimension.amount(use)), dimension.to_unit(limit))
    return None


def of_models(tenant: Tenant) -> str:
    """Return the name of the dimension that counts all limits per model of a tenant together, for sentences."""
    limits = ", ".join(f"{model}: {limit}" for model, limit in sorted(tenant.max_gpus_by_model))
    return f"{_OF_MODELS} ({limits})"


def is_of_models(name: str) -> bool:
    return name.startswith(_OF_MODELS)


def use_of(request: Request, gpu_memory_mb: int, models: tuple[tuple[tuple[str, ...], int], ...] = ()) -> Use:
    return Use(request.gpu_count, gpu_memory_mb, request.cpu_milli, request.memory_mb, models=models)


def gpu_memory_of(request: Request, ranks: tuple[RankPlacement, ...], memory_mb: Mapping[int, int | None]) -> int:
    """Return the MiB that the ranks of a job count for. `memory_mb`: device id -> its memory, None if unknown."""
    total = 0
    for rank in ranks:
        for hold in rank.holds:
            device_mb = memory_mb.get(hold.device_id) or request.gpu_memory_mb or 0
            total += device_mb if hold.memory_mb is None else hold.memory_mb
    return total


def models_of(ranks: tuple[RankPlacement, ...], models: Mapping[int, str]) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Return `Use.models` of ranks that are placed. `models`: device id -> its model."""
    counts: dict[str, int] = {}
    for device_id in _held_device_ids(ranks):
        model = models.get(device_id, "")
        counts[model] = counts.get(model, 0) + 1
    return tuple(((model,), count) for model, count in sorted(counts.items()))


def _held_device_ids(ranks: tuple[RankPlacement, ...]) -> Iterator[int]:
    return (hold.device_id for rank in ranks for hold in rank.holds)


@lru_cache(maxsize=4096)
def _is_named(word: str, names: tuple[str, ...]) -> bool:
    """Return whether the limit's word names each of these models."""
    return bool(names) and all(is_model(word, name) for name in names)
