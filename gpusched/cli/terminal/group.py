"""The group class of every level: failures become their exit code here, so that no command handles them itself."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import typer
from typer.core import TyperGroup

from gpusched.cli.terminal import messages, progress

T = TypeVar("T")


class CommandGroup(TyperGroup):
    def invoke(self, ctx: Any) -> Any:
        with report_failures():
            return super().invoke(ctx)


def group(help_text: str, *, has_completion: bool = False) -> typer.Typer:
    """A Typer that prints plain help: quicker than rich's, the same on a terminal and in a pipe."""
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
    """Turns what the SDK raises into sentences on stderr and an exit code."""
    from gpusched.client.errors import GpuschedError

    try:
        yield
    except GpuschedError as error:
        messages.failure(error)
        raise typer.Exit(error.exit_code) from error


def for_each(names: Sequence[T], act: Callable[[T], None]) -> None:
    """Acts on every one, also when some fail; the exit code is that of the first failure."""
    from gpusched.client.errors import GpuschedError

    first = 0
    with progress.bar(f"{len(names)} in all", len(names), least=progress.MIN_THINGS) as is_at:
        for done, name in enumerate(names):
            is_at(done)
            try:
                act(name)
            except GpuschedError as error:
                messages.failure(error)
                first = first or error.exit_code
    if first:
        raise typer.Exit(first)


def confirm(question: str, *, is_sure: bool) -> None:
    """Asks, unless --yes was given. Without anybody to ask it refuses rather than assumes."""
    import sys

    if is_sure:
        return
    if not sys.stdin.isatty():
        from gpusched.client.errors import Invalid

        raise Invalid(f"{question} Nobody is there to answer", next_step="add --yes")
    if not typer.confirm(question, err=True):
        raise typer.Abort
