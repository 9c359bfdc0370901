"""The references of the commands `gpusched` and `gpusched-agent`, from their parsers: usage, options and examples."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import typer.main

from deploy.reference.parts import HEAD, anchor, code, table
from gpusched.agent.main import app as agent_app
from gpusched.cli.app import app
from gpusched.cli.flags.flags import FLAGS
from gpusched.client import errors

PROGRAMS = {"gpusched": typer.main.get_command(app), "gpusched-agent": typer.main.get_command(agent_app)}
_INTRODUCTION = """\
# Reference: the command line

Each command with its arguments and options. [cli.md](../cli.md) says how they go together: job files, output, where the
server is found. `gpusched COMMAND --help` prints the same.

## Commands

"""
_AGENT_INTRODUCTION = """\
# Reference: the agent

Each command of `gpusched-agent` with its arguments and options. [agent.md](../agent.md) says what the agent does, and
what its configuration file may say instead. `gpusched-agent COMMAND --help` prints the same.
"""
_JOB_FLAGS = "Flags of a job"
_HIDDEN = {"help"}


@dataclass(frozen=True)
class Command:
    """One command; `parser` is what reads its words."""

    program: str
    name: str
    parser: Any

    @property
    def heading(self) -> str:
        return f"{self.program} {self.name}"


def commands(program: str = "gpusched") -> list[Command]:
    """All of one of the PROGRAMS, each group after the commands that stand alone."""
    return [Command(program, name, parser) for name, parser in _walk(PROGRAMS[program], "")]


def _walk(group: Any, before: str) -> Iterator[tuple[str, Any]]:
    for word, parser in group.commands.items():
        name = f"{before} {word}".strip()
        is_group = hasattr(parser, "commands")
        if not is_group or parser.invoke_without_command:
            yield name, parser
        if is_group:
            yield from _walk(parser, name)


def overview(folder: str = "reference/") -> str:
    """A row for each command, which leads to it."""
    page = f"{folder}cli.md" if folder else ""
    rows = [
        (f"[{code(one.name)}]({page}#{anchor(one.heading)})", help_of(one.parser.help).summary) for one in commands()
    ]
    return table(("command", "does"), rows)


def reference() -> str:
    """The whole document."""
    parts = [HEAD, _INTRODUCTION, overview(folder=""), "\n## Before the command\n\n"]
    parts.append(_options(PROGRAMS["gpusched"].params, PROGRAMS["gpusched"]))
    parts += [_section(one) for one in commands()]
    parts += [f"\n## {_JOB_FLAGS}\n\nOf `submit` and `run`. Each is named after a field of a [job request]"]
    parts += ["(../rest.md#job-request), which says more.\n\n", _job_flags()]
    parts += ["\n## Exit codes\n\n", exit_codes()]
    return "".join(parts)


def agent_reference() -> str:
    """The whole document."""
    return "".join([HEAD, _AGENT_INTRODUCTION, *(_section(one) for one in commands("gpusched-agent"))])


def agent_variables() -> str:
    """A row for each variable that a command of the agent reads, with the option that it stands for."""
    params = [param for one in commands("gpusched-agent") for param in one.parser.params]
    rows = {param.envvar: (code(param.envvar), code(param.opts[0]), _help(param)) for param in params if param.envvar}
    return table(("variable", "stands for", "meaning"), rows.values())


def _help(param: Any) -> str:
    """Without what the other columns say."""
    _, told = param.get_help_record(_context(PROGRAMS["gpusched-agent"], "gpusched-agent"))
    return re.sub(rf"env var: {param.envvar}(; )?", "", told).replace("  []", "")


@dataclass(frozen=True)
class Help:
    """The three parts that each help has: a sentence, examples, and what else there is to know."""

    summary: str
    examples: list[str]
    more: str


def help_of(text: str | None) -> Help:
    summary, *others = re.split(r"\n\s*\n", inspect.cleandoc(text or "").strip())
    examples: list[str] = []
    more: list[str] = []
    for part in others:
        if part.startswith(("\b", "\n")):
            examples += [line.strip() for line in part.replace("\b", "").strip().splitlines()]
        else:
            more.append(" ".join(part.split()))
    return Help(" ".join(summary.split()), examples, "\n\n".join(more))


def _section(command: Command) -> str:
    told = help_of(command.parser.help)
    parts = [f"\n## {command.heading}\n\n{told.summary}\n\n```text\n{_usage(command)}\n```\n"]
    if options := _options(command.parser.params, command.parser):
        parts.append(f"\n{options}")
    if _has_job_flags(command.parser):
        parts.append(f"\nAnd the [flags of a job](#{anchor(_JOB_FLAGS)}).\n")
    if told.more:
        parts.append("\n" + re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](../\1)", told.more) + "\n")
    if told.examples:
        lines = [re.sub(r"   \((.*)\)$", r"   # \1", line) for line in told.examples]
        parts.append("\n```sh\n" + "\n".join(lines) + "\n```\n")
    return "".join(parts)


def _usage(command: Command) -> str:
    usage: str = command.parser.get_usage(_context(command.parser, command.heading))
    return " ".join(usage.removeprefix("Usage: ").split())


def _context(parser: Any, name: str) -> Any:
    return parser.context_class(parser, info_name=name)


def _options(params: list[Any], parser: Any) -> str:
    """A table of what a command takes of its own; empty if that is nothing."""
    shared = {flag.name for flag in FLAGS} if _has_job_flags(parser) else set()
    rows = [_row(param, parser) for param in params if param.name not in shared | _HIDDEN]
    return table(("option", "meaning"), [row for row in rows if row]) if any(rows) else ""


def _has_job_flags(parser: Any) -> bool:
    return any(param.name == FLAGS[-1].name for param in parser.params)


def _job_flags() -> str:
    [submit] = [one.parser for one in commands() if one.name == "submit"]
    wanted = [flag.name for flag in FLAGS if flag.name != "command"]
    rows = [_row(param, submit) for name in wanted for param in submit.params if param.name == name]
    return table(("option", "meaning"), [row for row in rows if row])


def _row(param: Any, parser: Any) -> tuple[str, str] | None:
    """How it is written, and what it means. Arguments without a help of their own stand in the usage already."""
    record = param.get_help_record(_context(parser, ""))
    if record is None or record[1].strip() in ("", "[required]"):
        return None
    spelling, meaning = record
    return code(" ".join(spelling.split())), meaning


def exit_codes() -> str:
    """From the exceptions of the SDK, which the command line turns into them."""
    rows = [("0", "done")]
    rows += [(str(one.exit_code), docstring_of(one)) for one in exceptions()]
    return table(("code", "when"), rows)


def exceptions() -> list[type[errors.GpuschedError]]:
    """Those that mirror an exit code, in its order."""
    return sorted(errors.GpuschedError.__subclasses__(), key=lambda one: one.exit_code)


def docstring_of(kind: type) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split())
