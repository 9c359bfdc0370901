"""Names the fields of all models in words with their units, as the admin shows them: from how a field is called.

Sizes end in `_mb` and durations in their unit, so the words need not stand at each field, nor in migrations."""

from collections.abc import Iterable

from django.db.models import Model

_UNITS = {
    "mb": "MiB", "ms": "ms", "seconds": "seconds", "minutes": "minutes", "days": "days", "celsius": "°C",
    "percent": "%", "watts": "W", "mhz": "MHz", "milli": "thousandths of a core",
}  # fmt: skip
_SPELLINGS = {
    "gpu": "GPU", "gpus": "GPUs", "cpu": "CPU", "uuid": "UUID", "numa": "NUMA", "nvlink": "NVLink", "mig": "MIG",
    "pci": "PCI", "unix": "Unix", "pid": "process id", "sm": "SM", "ecc": "ECC", "runtime": "run time",
}  # fmt: skip
# What the words of the field do not say.
_NAMES = {
    "held_whole": "held as a whole",
    "ms": "length (ms)",
    "max_runtime_minutes": "time limit (minutes)",
    "held_mb": "memory held (MiB)",
    "thermal_threshold_celsius": "hot from (°C)",
    "load_threshold": "maximum load of a whole GPU (1: any)",
    "load_threshold_shared": "maximum load of a shared GPU (1: any)",
    "dynamic_share_bound": "bound of the dynamic share",
    "limit_version": "changes of the time limit",
    "signal_count": "signals sent",
    "enable_thermal_aware": "place by heat",
    "payload": "command and environment",
    "member_extend_minutes": "members may extend by (minutes)",
    "thermal_move_minutes": "moved when hot for (minutes)",
    "online_percent": "GPUs for online jobs (%)",
    "is_slowed": "slowed down by its hardware",
    "predicted_seconds": "predicted run time (seconds)",
    "clock_off_seconds": "clock ahead by (seconds)",
    "price_per_gpu_hour": "price of a GPU-hour",
    "soft_gpu_hours": "soft limit (GPU-hours)",
    "hard_gpu_hours": "hard limit (GPU-hours)",
    "gpu_seconds": "GPU-seconds",
}


def name_fields(models: Iterable[type[Model]]) -> None:
    """Sets the name of each field that was given none."""
    for model in models:
        for field in model._meta.local_fields:
            # Django keeps there what was given: what is set here is in no migration.
            if getattr(field, "_verbose_name", None) is None:
                field.verbose_name = label(field.name)


def label(name: str) -> str:
    """`max_gpu_memory_mb` is "GPU memory at most (MiB)"."""
    if name in _NAMES:
        return _NAMES[name]
    first, *others = name.split("_")
    bound = {"max": " at most", "min": " at least"}.get(first, "") if others else ""
    parts = others if bound else [first, *others]
    unit = f" ({_UNITS[parts.pop()]})" if len(parts) > 1 and parts[-1] in _UNITS and "per" not in parts else ""
    return " ".join(_SPELLINGS.get(part, part) for part in parts) + bound + unit
