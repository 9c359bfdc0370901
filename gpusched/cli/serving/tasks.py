"""The commands for tasks: inference requests to endpoints."""

import json
import mimetypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpusched.cli.flags.options import TenantOption
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import for_each, group
from gpusched.cli.terminal.output import Format
from gpusched.cli.terminal.session import connect
from gpusched.protocol.batches import JSON

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
    file: Annotated[
        Path | None,
        typer.Option("--file", "-f", help="A file as the input, as bytes unless it is JSON.", show_default=False),
    ] = None,
    content_type: Annotated[
        str | None,
        typer.Option("--type", help="Media type of the file; default: by its name.", show_default=False),
    ] = None,
    units: Annotated[float, typer.Option("--units", help="The cost is that of the endpoint times this.")] = 1.0,
    tenant: TenantOption = None,
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Wait for the result.")] = False,
    timeout: TimeoutOption = None,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Submit a task. Its input is JSON; text that is not JSON is sent as a string.

    \b
    gpusched task submit embed "the quick brown fox" --wait
    gpusched task submit embed '{"texts": ["a", "b"]}'
    gpusched task submit caption --file cat.png --wait
    """
    if file is not None and text is not None:
        raise typer.BadParameter("give either INPUT or --file")
    kind = content_type or (mimetypes.guess_type(file.name)[0] if file else None)
    value = _content(file, kind) if file else _input(_stdin() if text in (None, "-") else text or "")
    with connect(ctx) as client:
        task = client.submit_task(endpoint, value, tenant=tenant, units=units, content_type=kind)
        if wait:
            # No command lists tasks: without its id, the result of an ended wait could not be had.
            messages.note(f"task {task.id} submitted; Ctrl-C ends the wait, not the task")
            task = client.wait_task(task.id, timeout)
    _print_or_fail(task, form)


@app.command("status")
def status(ctx: typer.Context, task_id: int, form: output.ObjectOption = Format.TABLE) -> None:
    """Show a task, and its result if it has ended.

    \b
    gpusched task status 17
    """
    with connect(ctx) as client:
        _print_or_fail(client.task(task_id), form)


@app.command("wait")
def wait(
    ctx: typer.Context, task_ids: list[int], timeout: TimeoutOption = None, form: output.ObjectOption = Format.TABLE
) -> None:
    """Wait until tasks have ended, and print each result as soon as it is there.

    Of several tasks, -o jsonl names the task of each result. Exits with 1 if a task ended without a result.

    \b
    gpusched task wait 17
    gpusched task wait 17 18 19 -o jsonl
    """
    if form is Format.JSON and len(task_ids) > 1:
        raise typer.BadParameter("json is for one task; use jsonl", param_hint="--output")
    has_failed = False
    with connect(ctx) as client:
        for task in client.wait_tasks(task_ids, timeout):
            has_failed |= not _print(task, form)
    if has_failed:
        raise typer.Exit(1)


@app.command("result")
def result(ctx: typer.Context, task_id: int) -> None:
    """Write the result of a task to stdout, as bytes.

    \b
    gpusched task result 17 > caption.txt
    """
    with connect(ctx) as client:
        sys.stdout.buffer.write(client.task_result(task_id))


@app.command("cancel")
def cancel(ctx: typer.Context, task_ids: list[int]) -> None:
    """Cancel tasks.

    \b
    gpusched task cancel 17 18
    """
    with connect(ctx) as client:
        for_each(task_ids, lambda number: messages.note(f"task {number}: {client.cancel_task(number).state}"))


def _stdin() -> str:
    from gpusched.client.errors import Invalid

    try:
        return sys.stdin.buffer.read().decode()
    except UnicodeDecodeError as error:
        raise Invalid("the input on stdin is not text in UTF-8", next_step="send bytes with --file FILE") from error


def _input(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as error:
        raise typer.BadParameter("it is nested too deeply", param_hint="INPUT") from error
    except ValueError:
        return text


def _content(file: Path, kind: str | None) -> Any:
    """Return the JSON values of a JSON file, and the bytes of another one."""
    try:
        content = file.read_bytes()
        return json.loads(content) if kind == JSON else content
    except (OSError, ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="--file") from error


def _print_or_fail(task: "TaskData", form: Format) -> None:
    """Print a task; exit with 1 if it ended without a result."""
    if not _print(task, form):
        raise typer.Exit(1)


def _print(task: "TaskData", form: Format) -> bool:
    """Print the result on stdout and the rest on stderr. Return False if the task ended without a result."""
    if task.state == "completed":
        is_inline = task.output_type in ("", JSON) and (task.output is not None or (task.output_bytes or 0) <= 4)
        summary = f"{task.output_bytes} bytes of {task.output_type}: gpusched task result {task.id}"
        text = output.as_json(json.dumps(task.output, ensure_ascii=False)) if is_inline else summary
        messages.note(f"task {task.id} completed in a batch of {task.batch_size} ({task.flush_reason})")
    else:
        text = f"task {task.id} is {task.state}" + (f": {task.error or task.error_code}" if task.error_code else "")
    output.one(task, form, text=text, name=task.id)
    return task.state in ("queued", "running", "completed")
