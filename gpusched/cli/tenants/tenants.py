"""The commands for tenants and their quotas."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.flags.options import YesOption
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import confirm, group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect
from gpusched.protocol import amounts

if TYPE_CHECKING:
    from gpusched.protocol.rest.cluster import Tenant

app = group("Create, list, show, rename and archive tenants.")
Limit = str | None
MaxGpus = Annotated[Limit, typer.Option(metavar="N|none", help="GPUs held at once.")]
MaxGpuMemory = Annotated[Limit, typer.Option(metavar="N|none", help="GPU memory, in MiB.")]
MaxCpuCores = Annotated[Limit, typer.Option(metavar="N|none", help="CPU cores.")]
MaxMemory = Annotated[Limit, typer.Option(metavar="N|none", help="Memory, in MiB.")]
MaxJobs = Annotated[Limit, typer.Option(metavar="N|none", help="Running jobs.")]
MaxGpusPerUser = Annotated[Limit, typer.Option(metavar="N|none", help="GPUs of each of its users.")]
MaxGpusByModel = Annotated[Limit, typer.Option(metavar="MODEL=N,…|none", help="GPUs per model, like A100=16,H100=8.")]
MaxQueued = Annotated[Limit, typer.Option(metavar="N|none", help="Waiting jobs; none: the server's setting.")]
MaxDeferred = Annotated[
    Limit, typer.Option(metavar="N|none", help="Jobs that cannot start yet; none: the server's setting.")
]
DefaultRuntime = Annotated[
    Limit, typer.Option(metavar="N|none", help="Time limit, in minutes, of jobs submitted without one.")
]
Guaranteed = Annotated[Limit, typer.Option(metavar="N", help="GPUs that it can always get back.")]
_LIMITS = (
    "max_gpus", "max_gpu_memory_mb", "max_cpu_cores", "max_memory_mb", "max_concurrent_jobs", "max_gpus_per_user",
    "max_queued_jobs", "max_deferred_jobs", "default_runtime_minutes", "guaranteed_gpus",
)  # fmt: skip

_COLUMNS: "tuple[Column[Tenant], ...]" = (
    Column("TENANT", lambda t: t.name),
    Column("GPUS", lambda t: _of(t.in_use.gpus, t.quota.max_gpus)),
    Column("GUARANTEED", lambda t: t.quota.guaranteed_gpus),
    Column("JOBS", lambda t: _of(t.in_use.jobs, t.quota.max_concurrent_jobs)),
    Column("PENDING", lambda t: t.pending_jobs),
    Column("GPU MEMORY", lambda t: _of(t.in_use.gpu_memory_mb, t.quota.max_gpu_memory_mb), is_wide=True),
    Column("CPU CORES", lambda t: _of(t.in_use.cpu_cores, t.quota.max_cpu_cores), is_wide=True),
    Column("MEMORY", lambda t: _of(t.in_use.memory_mb, t.quota.max_memory_mb), is_wide=True),
    Column("TIME LIMIT", lambda t: _minutes(t.quota.default_runtime_minutes), is_wide=True),
    Column("WEIGHT", lambda t: t.weight),
    Column("TIER", lambda t: t.tier),
    Column("ARCHIVED", lambda t: t.archived_at, is_wide=True),
    Column("UNIX USER", lambda t: t.unix_user, is_wide=True),
    Column("DISPLAY NAME", lambda t: t.display_name, is_wide=True),
)


@app.command("list")
def list_tenants(
    ctx: typer.Context,
    archived: Annotated[bool, typer.Option("--archived", help="Also archived tenants.")] = False,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """List tenants, their use and their limits.

    \b
    gpusched tenant list
    gpusched tenant list --archived
    """
    with connect(ctx) as client:
        rows = client.tenants(archived=archived)
    output.items(rows, _COLUMNS, form, lambda t: t.name)


@app.command()
def show(ctx: typer.Context, name: str, form: output.ObjectOption = Format.TABLE) -> None:
    """Show a tenant.

    \b
    gpusched tenant show nlp
    """
    with connect(ctx) as client:
        tenant = client.tenant(name)
    output.one(tenant, form, text=_described(tenant), name=tenant.name)


@app.command()
def create(
    ctx: typer.Context,
    name: str,
    display_name: Annotated[str | None, typer.Option(help="The name shown to people.")] = None,
    weight: Annotated[
        float | None, typer.Option(help="Twice the weight gets twice the share; 0.001 to 1000000.")
    ] = None,
    tier: Annotated[str | None, typer.Option(help="premium, standard or opportunistic.")] = None,
    unix_user: Annotated[str | None, typer.Option(help="The Unix user of its jobs, on all nodes.")] = None,
    form: output.ObjectOption = Format.NAME,
) -> None:
    """Create a tenant. It has no limits until `gpusched quota` sets them.

    \b
    gpusched tenant create nlp --display-name "Language team" --weight 2

    For admins. `gpusched member add` adds members.
    """
    with connect(ctx) as client:
        tenant = client.create_tenant(name, display_name=display_name, weight=weight, tier=tier, unix_user=unix_user)
    messages.note(f"tenant {tenant.name} created")
    output.one(tenant, form, text=_described(tenant), name=tenant.name)


@app.command()
def rename(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TENANT", show_default=False)],
    new_name: Annotated[str, typer.Argument(metavar="NEW_NAME", show_default=False)],
) -> None:
    """Rename a tenant (admins). Jobs, use and history stay; the old name becomes unknown.

    \b
    gpusched tenant rename nlp language
    """
    with connect(ctx) as client:
        client.rename_tenant(name, new_name)
    messages.note(f"tenant {name} renamed to {new_name}")


@app.command()
def archive(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="TENANT", show_default=False)],
    cancel_jobs: Annotated[
        bool, typer.Option("--cancel-jobs", help="Cancel its waiting jobs and stop its running jobs.")
    ] = False,
    yes: YesOption = False,
) -> None:
    """Archive a tenant: it accepts no jobs, and lists leave it out (admins). Its use and history stay.

    \b
    gpusched tenant archive nlp
    gpusched tenant archive nlp --cancel-jobs --yes

    Refused while it has waiting or running jobs, unless --cancel-jobs, which asks first. Its guarantee is void until
    `gpusched tenant unarchive`.
    """
    if cancel_jobs:
        confirm(f"Archive tenant {name}, cancel its waiting jobs and stop its running jobs?", is_sure=yes)
    with connect(ctx) as client:
        result = client.archive_tenant(name, cancel_jobs=cancel_jobs)
    jobs = f"; jobs cancelled: {result.cancelled_jobs}, being stopped: {result.stopping_jobs}" if cancel_jobs else ""
    messages.note(f"tenant {name} archived{jobs}")


@app.command()
def unarchive(ctx: typer.Context, name: Annotated[str, typer.Argument(metavar="TENANT", show_default=False)]) -> None:
    """Restore an archived tenant with its quota, guarantee and members (admins).

    \b
    gpusched tenant unarchive nlp
    """
    with connect(ctx) as client:
        client.unarchive_tenant(name)
    messages.note(f"tenant {name} restored")


def quota(
    ctx: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[TENANT]", show_default=False)] = None,
    form: output.OutputOption = Format.TABLE,
    max_gpus: MaxGpus = None,
    max_gpu_memory_mb: MaxGpuMemory = None,
    max_cpu_cores: MaxCpuCores = None,
    max_memory_mb: MaxMemory = None,
    max_concurrent_jobs: MaxJobs = None,
    max_gpus_per_user: MaxGpusPerUser = None,
    max_gpus_by_model: MaxGpusByModel = None,
    max_queued_jobs: MaxQueued = None,
    max_deferred_jobs: MaxDeferred = None,
    default_runtime_minutes: DefaultRuntime = None,
    guaranteed_gpus: Guaranteed = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Preview the effect; change nothing.")] = False,
) -> None:
    """Show the limits of tenants and their use; with limits, change them (none: no limit).

    \b
    gpusched quota
    gpusched quota nlp
    gpusched quota nlp --max-gpus 16 --guaranteed-gpus 8
    gpusched quota nlp --max-gpus-by-model A100=8 --dry-run
    gpusched quota nlp --default-runtime-minutes 480

    Omitted limits stay unchanged. A lower limit stops no job; --dry-run lists the jobs that would start, wait or
    be stopped. Only admins can change limits.
    """
    changes = _changes(ctx.params)  # the limits above, by name
    if name is None and (changes or dry_run):
        raise typer.BadParameter("name the tenant whose quota to change", param_hint="TENANT")
    _show_or_change(ctx, name, changes, form, dry_run=dry_run)


def _changes(options: dict[str, str | None]) -> dict[str, object]:
    """Return the new values of the limits that the options set."""
    texts = {field: text for field in _LIMITS if (text := options[field]) is not None}
    changes: dict[str, object] = {field: _limit(field, text) for field, text in texts.items()}
    if (by_model := options["max_gpus_by_model"]) is not None:
        changes["max_gpus_by_model"] = _by_model(by_model)
    return changes


def _show_or_change(
    ctx: typer.Context, name: str | None, changes: dict[str, object], form: Format, *, dry_run: bool
) -> None:
    import msgspec

    with connect(ctx) as client:
        if name is None:
            output.items(client.tenants(), _COLUMNS, form, lambda t: t.name)
            return
        if changes:
            # Read, change, write: the server refuses the write if the quota was edited in between.
            changed = client.set_quota(name, msgspec.structs.replace(client.quota(name), **changes), dry_run=dry_run)
            for sentence in changed.effect.sentences:
                messages.note(sentence)
            messages.note(
                "nothing changed (dry run)" if dry_run else f"quota of {name} changed (version {changed.version})"
            )
        tenant = client.tenant(name)
    output.items([tenant], _COLUMNS, form, lambda t: t.name)


def _limit(field: str, text: str) -> int | None:
    if text.lower() == "none" and field != "guaranteed_gpus":
        return None
    if not text.isdecimal():
        raise typer.BadParameter(f"{text!r} is not a whole number", param_hint=f"--{field.replace('_', '-')}")
    return int(text)


def _by_model(text: str) -> dict[str, int]:
    """Parse A100=16,H100=8 into a dictionary; none: no limits."""
    if text.lower() == "none":
        return {}
    parts = [part.rpartition("=") for part in text.split(",")]
    for model, _, number in parts:
        if not model.strip() or not number.strip().isdecimal():
            raise typer.BadParameter(f"{text!r} is not like A100=16,H100=8", param_hint="--max-gpus-by-model")
    return {model.strip(): int(number) for model, _, number in parts}


def _of(used: float, limit: float | None) -> str:
    return f"{amounts.exact(used)}/{'-' if limit is None else amounts.exact(limit)}"


def _minutes(minutes: int | None) -> str | None:
    return None if minutes is None else f"{minutes} min"


def _described(tenant: "Tenant") -> str:
    width = max(len(column.title) for column in _COLUMNS) + 2
    values = ((column.title.lower(), column.value(tenant)) for column in _COLUMNS)
    return "\n".join(f"{title:<{width}}{value}" for title, value in values if value is not None)
