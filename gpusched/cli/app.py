"""The tree of commands, with the global options above them."""

from typing import Annotated

import typer

from gpusched import __version__
from gpusched.cli.cluster import cycles, gpus, mcp, nodes, policy, records, simulate, top, watch
from gpusched.cli.jobs import arrays, extend, forward, jobs, queue, signal, submit
from gpusched.cli.notifications import notify
from gpusched.cli.reservations import lease, reserve
from gpusched.cli.serving import endpoints, tasks
from gpusched.cli.tenants import audit, billing, logout, members, secrets, tenants, tokens, users
from gpusched.cli.terminal import messages
from gpusched.cli.terminal.group import group
from gpusched.cli.terminal.session import Globals, connect

app = group(
    """Share a cluster of GPUs.

\b
gpusched login https://gpusched.example
gpusched submit --gpus 1 -- python train.py
gpusched ps
gpusched why 42
gpusched logs -f 42
gpusched --install-completion
""",
    has_completion=True,
)

# Options after the program belong to the program, so `gpusched submit python train.py --epochs 3` needs no `--`.
_PROGRAM_LAST = {"allow_interspersed_args": False}


@app.callback()
def options(
    ctx: typer.Context,
    url: Annotated[str | None, typer.Option(help="The server [GPUSCHED_URL].", show_default=False)] = None,
    token_file: Annotated[
        str | None, typer.Option(help="File with the token [GPUSCHED_TOKEN, GPUSCHED_TOKEN_FILE].", show_default=False)
    ] = None,
    ca_file: Annotated[
        str | None,
        typer.Option(help="Trust only the authorities in this file for https [GPUSCHED_CA_FILE].", show_default=False),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only errors on stderr, no notes.")] = False,
) -> None:
    ctx.obj = Globals(url, token_file, ca_file)
    messages.be_quiet(quiet)


def version(
    ctx: typer.Context,
    server: Annotated[bool, typer.Option("--server", help="Also ask the server for its version.")] = False,
) -> None:
    """Print the version.

    \b
    gpusched version
    gpusched version --server
    """
    print(f"gpusched {__version__}")
    if server:
        with connect(ctx) as client:
            health = client.health()
        print(f"server {health.version} ({health.status})")


app.command(context_settings=_PROGRAM_LAST)(submit.submit)
app.command(context_settings=_PROGRAM_LAST)(submit.run)
# All arguments belong to the simulator, even --help.
_ALL_ARGUMENTS = {**_PROGRAM_LAST, "ignore_unknown_options": True}
app.command(context_settings=_ALL_ARGUMENTS, add_help_option=False)(simulate.simulate)
for _command in (
    jobs.ps,
    jobs.why,
    jobs.attempts,
    jobs.logs,
    jobs.cancel,
    jobs.hold,
    jobs.release,
    jobs.requeue,
    jobs.retry,
    arrays.elements,
    extend.extend,
    signal.signal,
    forward.forward,
    queue.wait,
    queue.queue,
    queue.history,
    queue.events,
    queue.share,
    nodes.nodes,
    top.top,
):
    app.command()(_command)
app.add_typer(nodes.app, name="node")
app.add_typer(gpus.app, name="gpu")
app.add_typer(reserve.app, name="reserve")
app.add_typer(lease.app, name="lease")
app.add_typer(endpoints.app, name="endpoint")
app.add_typer(tasks.app, name="task")
app.add_typer(notify.app, name="notify")
app.command()(tenants.quota)
app.command()(policy.policy)
app.command()(billing.usage)
app.command()(billing.budget)
app.add_typer(billing.app, name="rate")
app.command()(audit.audit)
app.command()(records.incidents)
app.add_typer(cycles.app, name="cycles")
app.add_typer(records.app, name="exempt")
app.command()(records.whoami)
app.command()(mcp.mcp)
app.command()(watch.watch)
app.add_typer(tenants.app, name="tenant")
app.add_typer(users.app, name="user")
app.add_typer(members.app, name="member")
app.add_typer(tokens.app, name="token")
app.add_typer(secrets.app, name="secret")
app.command()(tokens.login)
app.command()(logout.logout)
app.command()(version)
