"""The keys under which ends of jobs are remembered, from narrow to wide."""

from collections.abc import Sequence
from typing import NamedTuple

from scheduling.prediction.templates import digest_of

Keys = tuple[str, str, str, str, str]
# The keys of one user, whose ends no other user can add to, come first.
OWN_KEYS = 3
# Up to this one, keys are of one command; this one is for any GPUs.
TEMPLATE_KEY = 1
# The widest key spans tenants: it may order jobs, and is never shown.
TENANT_KEYS = 4


class JobKind(NamedTuple):
    """The properties of a job that its prediction depends on. `models`: as requested, in any order."""

    tenant_id: int
    user_id: int
    template: str
    gpus: int
    models: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, tenant_id: int, user_id: int, command: Sequence[str], gpus: int, models: Sequence[str] = ()
    ) -> "JobKind":
        return cls(tenant_id, user_id, digest_of(tuple(command)), gpus, tuple(sorted(models)))


def keys_of(kind: JobKind) -> Keys:
    """Return the keys from narrow to wide: (user, template, GPUs, model), (user, template), (user, GPUs), (tenant,
    GPUs), all. A user's keys are those of one tenant: members see each other's predictions, and must not learn about
    runs elsewhere."""
    user = f"t{kind.tenant_id}/u{kind.user_id}"
    return (
        f"{user}/{kind.template}/g{kind.gpus}/{','.join(kind.models)}",
        f"{user}/{kind.template}",
        f"{user}/g{kind.gpus}",
        f"t{kind.tenant_id}/g{kind.gpus}",
        "all",
    )


def baseline_key(kind: JobKind) -> str:
    """Return the key of all ends of the user, whose median predictions must beat. Predictions do not use it."""
    return f"t{kind.tenant_id}/u{kind.user_id}"
