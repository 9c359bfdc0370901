"""The command `watch`: rules on this machine that reserve GPUs."""

import queue
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.terminal import messages
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.watch.judge import Llm
    from gpusched.watch.rules import Rules


def watch(
    ctx: typer.Context,
    rules: Annotated[Path, typer.Argument(metavar="RULES", help="YAML file with the rules.", show_default=False)],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Report what the rules would have done over their logs; book nothing.")
    ] = False,
    log: Annotated[
        Path | None, typer.Option(help="With --dry-run: read this log, such as yesterday's.", show_default=False)
    ] = None,
) -> None:
    """Watch logs, files, processes, commands or a Slurm queue, and reserve GPUs when a rule matches.

    \b
    gpusched watch rules.yaml
    gpusched watch --dry-run rules.yaml
    gpusched watch --dry-run --log train.log.1 rules.yaml

    Runs until it is stopped. It sends what the rules reserve, and never a text that it has read. Reservations are soft.
    """
    from gpusched.watch.judge import Llm
    from gpusched.watch.rules import load

    if log is not None and not dry_run:
        raise typer.BadParameter("applies only with --dry-run", param_hint="--log")
    loaded = load(rules)
    sys.path.insert(0, str(rules.resolve().parent))  # for monitors beside the rules
    is_asking = any(rule.ask for rule in loaded.rules)
    llm = Llm(loaded.endpoint) if loaded.endpoint and is_asking else None
    if dry_run:
        _dry_run(loaded, log, llm)
    else:
        _run(ctx, loaded, llm)


def _dry_run(loaded: "Rules", log: Path | None, llm: "Llm | None") -> None:
    from gpusched.watch.dry_run import report

    for rule in loaded.rules:
        for line in report(rule, log, llm.ask if llm else None):
            print(line)


def _run(ctx: typer.Context, loaded: "Rules", llm: "Llm | None") -> None:
    from gpusched.watch import sources
    from gpusched.watch.booking import ControlPlane
    from gpusched.watch.runner import Runner, Watched

    with connect(ctx) as client:
        config = client.config
    plane = ControlPlane(config)
    # Not an Event: its methods must not be interrupted by a handler that calls another one.
    stop: queue.SimpleQueue[None] = queue.SimpleQueue()

    def end(number: int, _: object) -> None:
        if not stop.empty():  # the second signal: the look in progress, such as a slow command, is not awaited
            sys.exit(128 + number)
        stop.put(None)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    watched = [Watched(rule, sources.create(rule)) for rule in loaded.rules]
    runner = Runner(watched, plane, lambda line: print(line, flush=True), llm.ask if llm else None)
    messages.note(f"watching {len(watched)} rules")
    is_stopped = False
    while not is_stopped:
        due_at = runner.step(datetime.now(UTC))
        with suppress(queue.Empty):
            stop.get(timeout=max(0.05, (due_at - datetime.now(UTC)).total_seconds()))
            is_stopped = True
    plane.close()
    if llm:
        llm.close()
