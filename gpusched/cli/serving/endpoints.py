"""The commands for endpoints: models that a tenant serves."""

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpusched.cli.flags.options import TenantOption, YesOption
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import confirm, for_each, group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect
from gpusched.protocol import amounts

if TYPE_CHECKING:
    from gpusched.client.calls.serving import EndpointOptions
    from gpusched.protocol.rest.serving import EndpointData

app = group("Serve models: each endpoint queues requests, batches them, and starts and stops its replicas.")
WarmUpOption = Annotated[
    str | None,
    typer.Option(
        help='Command that a replica runs before its own if pre-warming starts it, as "cat /data/model"; "": none.',
        show_default=False,
    ),
]
WarmUpSecondsOption = Annotated[
    int | None, typer.Option(help="Seconds that the warm-up command may take; 300 if not set.", show_default=False)
]
_COLUMNS: "tuple[Column[EndpointData], ...]" = (
    Column("NAME", lambda e: e.name),
    Column("TENANT", lambda e: e.tenant),
    Column("STATE", lambda e: e.state),
    Column("QUEUED", lambda e: e.queued),
    Column("OLDEST", lambda e: "" if e.oldest_wait_seconds is None else f"{e.oldest_wait_seconds:.1f}s"),
    Column("RUNNING", lambda e: e.running),
    Column("REPLICAS", lambda e: f"{e.warm}/{e.replicas}"),
    Column("PROBLEM", lambda e: e.problem),
)


@app.command("create", context_settings={"allow_interspersed_args": False})
def create(
    ctx: typer.Context,
    name: str,
    command: Annotated[
        list[str] | None, typer.Argument(help="The program of a replica, and its arguments.", show_default=False)
    ] = None,
    tenant: TenantOption = None,
    gpus: Annotated[int, typer.Option("--gpus", "-g", help="GPUs of a replica.")] = 0,
    gpu_memory: Annotated[
        int | None,
        typer.Option("--gpu-memory", help="MiB of each GPU, which is shared.", show_default=False),
    ] = None,
    image: Annotated[str | None, typer.Option(help="Run replicas in this container image.", show_default=False)] = None,
    kind: Annotated[str, typer.Option("--type", help="embedding, llm, diffusion or other.")] = "other",
    port: Annotated[
        int | None,
        typer.Option(help="The replica serves the OpenAI API on this port, instead of batches.", show_default=False),
    ] = None,
    shares_replicas_with: Annotated[
        str | None,
        typer.Option(help="Take turns on the replicas of this endpoint, without a program.", show_default=False),
    ] = None,
    max_batch: Annotated[int, typer.Option(help="Requests of a batch.")] = 8,
    max_wait_ms: Annotated[int, typer.Option(help="Milliseconds that a request may wait for others.")] = 10,
    min_replicas: Annotated[int, typer.Option("--min", help="Replicas that always run.")] = 0,
    max_replicas: Annotated[int, typer.Option("--max", help="Replicas at most.")] = 1,
    idle_seconds: Annotated[int, typer.Option(help="Stop a replica after this time without requests.")] = 300,
    warm_up: WarmUpOption = None,
    warm_up_seconds: WarmUpSecondsOption = None,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Create an endpoint. Options stand before NAME and the program.

    \b
    gpusched endpoint create --gpus 1 --type embedding embed -- python serve_embed.py
    gpusched endpoint create --gpus 1 --type llm --port 8000 chat -- vllm serve MODEL
    gpusched endpoint create --shares-replicas-with embed rerank
    """
    program = command or []
    program = program[1:] if program[:1] == ["--"] else program  # click keeps it after NAME
    if bool(program) == (shares_replicas_with is not None):
        raise typer.BadParameter("give either a program or --shares-replicas-with", param_hint="COMMAND")
    template: dict[str, Any] = {
        "command": program[:1],
        "args": program[1:],
        "gpu_count": gpus,
        "gpu_memory_mb": gpu_memory,
    }
    if gpu_memory is not None:
        template["gpu_sharing"] = "shared"
    if image is not None:
        template["image"] = image
    options: EndpointOptions = {
        "type": kind, "max_batch": max_batch, "max_wait_ms": max_wait_ms, "min_replicas": min_replicas,
        "max_replicas": max_replicas, "idle_seconds": idle_seconds,
    }  # fmt: skip
    if shares_replicas_with is not None:
        template, options["shares_replicas_with"] = {}, shares_replicas_with
    if warm_up:
        options["warm_up"] = shlex.split(warm_up)
    if warm_up_seconds is not None:
        options["warm_up_seconds"] = warm_up_seconds
    if port is not None:
        options |= {"protocol": "openai", "port": port}
    with connect(ctx) as client:
        created = client.create_endpoint(name, template, tenant=tenant, **options)
    output.one(created, form, text=f"endpoint {created.name} of tenant {created.tenant} is created", name=created.name)


@app.command("list")
def list_endpoints(ctx: typer.Context, tenant: TenantOption = None, form: output.OutputOption = Format.TABLE) -> None:
    """List endpoints with their load now.

    \b
    gpusched endpoint list
    gpusched endpoint list -o json
    """
    with connect(ctx) as client:
        rows = client.endpoints(tenant)
    output.items(rows, _COLUMNS, form, name=lambda endpoint: endpoint.name)


@app.command("show")
def show(ctx: typer.Context, name: str, tenant: TenantOption = None, form: output.ObjectOption = Format.TABLE) -> None:
    """Show an endpoint with its load now.

    \b
    gpusched endpoint show embed
    """
    with connect(ctx) as client:
        endpoint = client.endpoint(name, tenant=tenant)
    output.one(endpoint, form, text=_text(endpoint), name=endpoint.state)


@app.command("set")
def set_options(
    ctx: typer.Context,
    name: str,
    tenant: TenantOption = None,
    cost: Annotated[float | None, typer.Option(help="Cost of a request.", show_default=False)] = None,
    max_batch: Annotated[int | None, typer.Option(help="Requests of a batch.", show_default=False)] = None,
    max_wait_ms: Annotated[
        int | None, typer.Option(help="Milliseconds that a request may wait for others.", show_default=False)
    ] = None,
    max_queue: Annotated[int | None, typer.Option(help="Requests that may wait.", show_default=False)] = None,
    min_replicas: Annotated[
        int | None, typer.Option("--min", help="Replicas that always run.", show_default=False)
    ] = None,
    max_replicas: Annotated[int | None, typer.Option("--max", help="Replicas at most.", show_default=False)] = None,
    idle_seconds: Annotated[
        int | None, typer.Option(help="Stop a replica after this time without requests.", show_default=False)
    ] = None,
    prewarming: Annotated[
        bool | None,
        typer.Option(help="Keep or start a replica when requests are likely, by the history.", show_default=False),
    ] = None,
    warm_up: WarmUpOption = None,
    warm_up_seconds: WarmUpSecondsOption = None,
    timeout_seconds: Annotated[
        float | None, typer.Option(help="Seconds that a batch may take.", show_default=False)
    ] = None,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Change options of an endpoint; others stay.

    \b
    gpusched endpoint set --max 4 --idle-seconds 60 embed
    """
    options = {
        "cost": cost, "max_batch": max_batch, "max_wait_ms": max_wait_ms, "max_queue": max_queue,
        "min_replicas": min_replicas, "max_replicas": max_replicas, "idle_seconds": idle_seconds,
        "timeout_seconds": timeout_seconds, "prewarming": prewarming,
        "warm_up_seconds": warm_up_seconds,
    }  # fmt: skip
    changes: dict[str, Any] = {option: value for option, value in options.items() if value is not None}
    if warm_up is not None:
        changes["warm_up"] = shlex.split(warm_up) or None
    if not changes:
        raise typer.BadParameter("name at least one option to change, like --max 4", param_hint="NAME")
    with connect(ctx) as client:
        changed = client.change_endpoint(name, changes, tenant=tenant)
    output.one(changed, form, text=_text(changed), name=changed.name)


@app.command("drain")
def drain(ctx: typer.Context, names: list[str], tenant: TenantOption = None) -> None:
    """Refuse new requests; replicas end once the waiting ones are done.

    \b
    gpusched endpoint drain embed
    """
    with connect(ctx) as client:
        for_each(names, lambda name: messages.note(f"{client.drain_endpoint(name, tenant=tenant).name} drains"))


@app.command("rm")
def remove(
    ctx: typer.Context,
    names: list[str],
    tenant: TenantOption = None,
    with_queue: Annotated[bool, typer.Option("--with-queue", help="Also if requests wait; they are refused.")] = False,
    yes: YesOption = False,
) -> None:
    """Remove endpoints and stop their replicas.

    \b
    gpusched endpoint rm embed
    """
    confirm(f"Remove {', '.join(names)} and stop the replicas?", is_sure=yes)
    with connect(ctx) as client:
        for_each(names, lambda name: client.remove_endpoint(name, tenant=tenant, with_queue=with_queue))
    messages.note(f"removed {', '.join(names)}")


def _text(endpoint: "EndpointData") -> str:
    wait = "" if endpoint.oldest_wait_seconds is None else f", the oldest for {endpoint.oldest_wait_seconds:.1f} s"
    lines = [
        f"{endpoint.name} of tenant {endpoint.tenant}, {endpoint.state}, {endpoint.type}, "
        f"cost {amounts.exact(endpoint.cost)}",
        f"queued {endpoint.queued} of {endpoint.max_queue}{wait}; running {endpoint.running}",
        f"replicas {endpoint.replicas} ({endpoint.warm} warm), from {endpoint.min_replicas} to {endpoint.max_replicas}",
        f"batches of up to {endpoint.max_batch} requests, after {endpoint.max_wait_ms} ms at the latest",
    ]
    if endpoint.request_chance is not None and endpoint.keep_from_chance is not None:
        lines.append(
            f"kept warm: {'yes' if endpoint.is_kept_warm else 'no'}, a request within the next minute is "
            f"{endpoint.request_chance:.0%} likely, and a replica is worth keeping from {endpoint.keep_from_chance:.0%}"
        )
    if endpoint.prewarming_hits or endpoint.prewarming_misses:
        lines.append(
            f"pre-warming: {endpoint.prewarming_hits} hits, {endpoint.prewarming_misses} misses, "
            f"{endpoint.cold_starts_avoided} cold starts avoided, {endpoint.gpu_hours_wasted:.1f} GPU-hours wasted"
        )
    return "\n".join([*lines, *([f"problem: {endpoint.problem}"] if endpoint.problem else [])])
