"""The commands for tasks: inference requests to endpoints."""

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpusched.cli.serving.endpoints import TenantOption
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import for_each, group
from gpusched.cli.terminal.output import Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.protocol.rest.serving import TaskData

app = group("Send requests to endpoints, and read their results.")
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", help="Seconds to wait at most; default: until the end.", show_default=False),
]


@app.command("submit")
def submit(
    ctx: typer.Context,
    endpoint: str,
    text: Annotated[str | None, typer.Argument(metavar="[INPUT]", help="JSON, or text; - or nothing: stdin.")] = None,
    tenant: TenantOption = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the result.")] = False,
    timeout: TimeoutOption = None,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Submit a task. Its input is JSON; text that is not JSON is sent as a string.

    \b
    gpusched task submit embed "the quick brown fox" --wait
    gpusched task submit embed '{"texts": ["a", "b"]}'
    """
    value = _input(sys.stdin.read() if text in (None, "-") else text or "")
    with connect(ctx) as client:
        task = client.submit_task(endpoint, value, tenant=tenant)
        if wait:
            task = client.wait_task(task.id, timeout)
    _print(task, form)


@app.command("status")
def status(ctx: typer.Context, task_id: int, form: output.OutputOption = Format.TABLE) -> None:
    """Show a task, and its result if it has ended.

    \b
    gpusched task status 17
    """
    with connect(ctx) as client:
        _print(client.task(task_id), form)


@app.command("wait")
def wait(
    ctx: typer.Context, task_id: int, timeout: TimeoutOption = None, form: output.OutputOption = Format.TABLE
) -> None:
    """Wait until a task has ended, and print its result.

    \b
    gpusched task wait 17
    """
    with connect(ctx) as client:
        _print(client.wait_task(task_id, timeout), form)


@app.command("cancel")
def cancel(ctx: typer.Context, task_ids: list[int]) -> None:
    """Cancel tasks.

    \b
    gpusched task cancel 17 18
    """
    with connect(ctx) as client:
        for_each(task_ids, lambda number: messages.note(f"task {number}: {client.cancel_task(number).state}"))


def _input(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _print(task: "TaskData", form: Format) -> None:
    """Print the result on stdout and the rest on stderr; exit with 1 for a task that ended without a result."""
    if task.state == "completed":
        text = json.dumps(task.output, ensure_ascii=False)
        messages.note(f"task {task.id} completed in a batch of {task.batch_size} ({task.flush_reason})")
    else:
        text = f"task {task.id} is {task.state}" + (f": {task.error or task.error_code}" if task.error_code else "")
    output.one(task, form, text=text, name=task.id)
    if task.state not in ("queued", "running", "completed"):
        raise typer.Exit(1)
