"""The group class of all command levels. It turns failures into exit codes, so that no command handles them itself."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from typer.core import TyperGroup

from gpusched.cli.terminal import messages, progress

T = TypeVar("T")
# Commands of Slurm and of container tools, and the command here for the same work. Typer suggests by similar spelling.
_OURS = {
    "sbatch": "submit",
    "srun": "run",
    "exec": "run",
    "salloc": "lease",
    **dict.fromkeys(("jobs", "job", "list", "ls", "status", "get", "squeue"), "ps"),
    **dict.fromkeys(("show", "describe", "inspect", "scontrol", "sprio"), "why"),
    **dict.fromkeys(("stop", "kill", "delete", "rm", "scancel"), "cancel"),
    **dict.fromkeys(("log", "tail", "attach"), "logs"),
    **dict.fromkeys(("gpus", "sinfo"), "nodes"),
    "port-forward": "forward",
    "sacct": "history",
    "sreport": "usage",
    "sshare": "share",
}


class CommandGroup(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        with report_failures():
            return super().invoke(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if ctx.parent is None and args[0] not in self.commands and (ours := _OURS.get(args[0])):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {ours!r}?")
        return super().resolve_command(ctx, args)


def group(help_text: str, *, has_completion: bool = False) -> typer.Typer:
    """Return a Typer that prints plain help: faster than rich's, the same on a terminal and in a pipe."""
    return typer.Typer(
        help=help_text,
        cls=CommandGroup,
        no_args_is_help=True,
        add_completion=has_completion,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


@contextmanager
def report_failures() -> Iterator[None]:
    """Turn the SDK's errors into sentences on stderr and an exit code."""
    from gpusched.client.errors import GpuschedError

    try:
        yield
    except GpuschedError as error:
        messages.failure(error)
        raise typer.Exit(error.exit_code) from error


def for_each(names: Sequence[T], perform: Callable[[T], None]) -> None:
    """Act on every item, even if some fail; exit with the code of the first failure. Stop at a server that cannot be
    reached: the client has waited long enough for it."""
    from gpusched.client.errors import GpuschedError, Unreachable

    first = 0
    with progress.bar(f"{len(names)} in total", len(names), minimum=progress.MIN_ITEMS) as is_at:
        for completed, name in enumerate(names):
            is_at(completed)
            try:
                perform(name)
            except GpuschedError as error:
                messages.failure(error)
                first = first or error.exit_code
                if isinstance(error, Unreachable):
                    if completed + 1 < len(names):
                        messages.note(f"the others, from {names[completed + 1]} on, were not tried")
                    break
    if first:
        raise typer.Exit(first)


def confirm(question: str, *, is_sure: bool) -> None:
    """Ask for confirmation, unless --yes was given. Refuse without a terminal, rather than assume."""
    import sys

    if is_sure:
        return
    if not sys.stdin.isatty():
        from gpusched.client.errors import Invalid

        raise Invalid(f"{question} There is no terminal to confirm on", next_step="add --yes")
    if not typer.confirm(question, err=True):
        raise typer.Abort
