"""Counts what placed jobs take of the limits of their tenants."""

from scheduling.engine.limits.quotas import Use, gpu_memory_of, models_of, use_of
from scheduling.engine.model import Job, RankPlacement, RunningJob, Snapshot


class UseCounter:
    """The devices of a snapshot, as far as limits count them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._counts_memory = any(tenant.max_gpu_memory_mb is not None for tenant in snapshot.tenants)
        counts_models = any(tenant.max_gpus_by_model for tenant in snapshot.tenants)
        devices = [device for node in snapshot.nodes for device in node.devices]
        self._memory = {device.id: device.memory_mb for device in devices} if self._counts_memory else {}
        self._models = {device.id: device.model for device in devices} if counts_models else {}
        self._uses: dict[int, Use] = {}

    @property
    def depends_on_place(self) -> bool:
        """Return whether some limit counts the memory or the models of GPUs."""
        return self._counts_memory or bool(self._models)

    def use(self, job: Job | RunningJob, ranks: tuple[RankPlacement, ...]) -> Use:
        """Return what the job takes in this place."""
        request = job.request
        if not self.depends_on_place:
            # It depends on the request alone, and jobs share theirs.
            cached = self._uses.get(id(request))
            if cached is None:
                cached = self._uses[id(request)] = use_of(request, 0, ())
            return cached
        gpu_memory_mb = gpu_memory_of(request, ranks, self._memory) if self._counts_memory else 0
        return use_of(request, gpu_memory_mb, models_of(ranks, self._models) if self._models else ())
