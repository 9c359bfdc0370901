"""Readable names with units for the fields of models and forms, derived from the field names, for the admin.

Sizes end in `_mb` and durations in their unit, so no field and no migration needs a `verbose_name`."""

from collections.abc import Iterable

from django.db.models import Model

_UNITS = {"mb": "MiB", "seconds": "seconds", "minutes": "minutes", "days": "days", "celsius": "°C", "percent": "%"}
_SPELLINGS = {"gpu": "GPU", "gpus": "GPUs", "cpu": "CPU", "unix": "Unix", "runtime": "run time"}
# Names that the rule cannot derive.
_NAMES = {
    "max_runtime_minutes": "time limit (minutes)",
    "thermal_threshold_celsius": "hot from (°C)",
    "load_threshold": "maximum load of a whole GPU (1: any)",
    "load_threshold_shared": "maximum load of a shared GPU (1: any)",
    "dynamic_share_bound": "bound of the dynamic share",
    "enable_thermal_aware": "place by heat",
    "member_extend_minutes": "members may extend by (minutes)",
    "thermal_move_minutes": "moved when hot for (minutes)",
    "online_percent": "GPUs for online jobs (%)",
    "price_per_gpu_hour": "price of a GPU-hour",
    "soft_gpu_hours": "soft limit (GPU-hours)",
    "hard_gpu_hours": "hard limit (GPU-hours)",
}


def name_fields(models: Iterable[type[Model]]) -> None:
    """Set the name of each field that has none."""
    for model in models:
        for field in model._meta.local_fields:
            # Django stores an explicit name there; a name set here enters no migration.
            if getattr(field, "_verbose_name", None) is None:
                field.verbose_name = label(field.name)


def label(name: str) -> str:
    """Return a readable name: `max_gpu_memory_mb` becomes "GPU memory at most (MiB)"."""
    if name in _NAMES:
        return _NAMES[name]
    first, *rest = name.split("_")
    bound = {"max": " at most", "min": " at least"}.get(first, "") if rest else ""
    parts = rest if bound else [first, *rest]
    unit = f" ({_UNITS[parts.pop()]})" if len(parts) > 1 and parts[-1] in _UNITS and "per" not in parts else ""
    return " ".join(_SPELLINGS.get(part, part) for part in parts) + bound + unit
