"""Generate the references of `gpusched` and `gpusched-agent` from their parsers: usage, options and examples."""

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

This page lists each command with its arguments and options. [cli.md](../cli.md) is the guide: job files, output, and
how the command finds the server. `gpusched COMMAND --help` prints the same.

## Commands

"""
_AGENT_INTRODUCTION = """\
# Reference: the agent

This page lists each command of `gpusched-agent` with its arguments and options. [agent.md](../agent.md) explains the
agent and its configuration file. `gpusched-agent COMMAND --help` prints the same.
"""
_JOB_FLAGS = "Flags of a job"
_HIDDEN = {"help"}


@dataclass(frozen=True)
class Command:
    """One command with its parser."""

    program: str
    name: str
    parser: Any

    @property
    def heading(self) -> str:
        return f"{self.program} {self.name}"


def commands(program: str = "gpusched") -> list[Command]:
    """Return all commands of one of the PROGRAMS, in the order of the parser."""
    return [Command(program, name, parser) for name, parser in _walk(PROGRAMS[program], "")]


def _walk(group: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for word, parser in group.commands.items():
        name = f"{prefix} {word}".strip()
        is_group = hasattr(parser, "commands")
        if not is_group or parser.invoke_without_command:
            yield name, parser
        if is_group:
            yield from _walk(parser, name)


def overview(folder: str = "reference/") -> str:
    """Return a table of all commands with links to their sections."""
    page = f"{folder}cli.md" if folder else ""
    rows = [
        (f"[{code(command.name)}]({page}#{anchor(command.heading)})", help_of(command.parser.help).summary)
        for command in commands()
    ]
    return table(("command", "does"), rows)


def reference() -> str:
    """Return the whole document."""
    parts = [HEAD, _INTRODUCTION, overview(folder=""), "\n## Before the command\n\n"]
    parts.append(_options(PROGRAMS["gpusched"].params, PROGRAMS["gpusched"]))
    parts += [_section(command) for command in commands()]
    parts += [f"\n## {_JOB_FLAGS}\n\n`submit` and `run` take these flags. Each sets a field of a [job request]"]
    parts += ["(../rest.md#job-request), which has the details.\n\n", _job_flags()]
    parts += ["\n## Exit codes\n\n", exit_codes()]
    return "".join(parts)


def agent_reference() -> str:
    """Return the whole document."""
    return "".join([HEAD, _AGENT_INTRODUCTION, *(_section(command) for command in commands("gpusched-agent"))])


def agent_variables() -> str:
    """Return a table of the variables that the agent's commands read, with the options that they set."""
    params = [param for command in commands("gpusched-agent") for param in command.parser.params]
    rows = {param.envvar: (code(param.envvar), code(param.opts[0]), _help(param)) for param in params if param.envvar}
    return table(("variable", "stands for", "meaning"), rows.values())


def _help(param: Any) -> str:
    """Return the help without the variable, which has its own column."""
    _, help_text = param.get_help_record(_context(PROGRAMS["gpusched-agent"], "gpusched-agent"))
    return re.sub(rf"env var: {param.envvar}(; )?", "", help_text).replace("  []", "")


@dataclass(frozen=True)
class Help:
    """The parts of a help text: a sentence, examples, and details."""

    summary: str
    examples: list[str]
    more: str


def help_of(text: str | None) -> Help:
    summary, *paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text or "").strip())
    examples: list[str] = []
    more: list[str] = []
    for part in paragraphs:
        if part.startswith(("\b", "\n")):
            examples += [line.strip() for line in part.replace("\b", "").strip().splitlines()]
        else:
            more.append(" ".join(part.split()))
    return Help(" ".join(summary.split()), examples, "\n\n".join(more))


def _section(command: Command) -> str:
    help = help_of(command.parser.help)
    parts = [f"\n## {command.heading}\n\n{help.summary}\n\n```text\n{_usage(command)}\n```\n"]
    if options := _options(command.parser.params, command.parser):
        parts.append(f"\n{options}")
    if _has_job_flags(command.parser):
        parts.append(f"\nAnd the [flags of a job](#{anchor(_JOB_FLAGS)}).\n")
    if help.more:
        parts.append("\n" + re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](../\1)", help.more) + "\n")
    if help.examples:
        lines = [re.sub(r"   \((.*)\)$", r"   # \1", line) for line in help.examples]
        parts.append("\n```sh\n" + "\n".join(lines) + "\n```\n")
    return "".join(parts)


def _usage(command: Command) -> str:
    usage: str = command.parser.get_usage(_context(command.parser, command.heading))
    return " ".join(usage.removeprefix("Usage: ").split())


def _context(parser: Any, name: str) -> Any:
    return parser.context_class(parser, info_name=name)


def _options(params: list[Any], parser: Any) -> str:
    """Return a table of the command's own options, or an empty string."""
    shared = {flag.name for flag in FLAGS} if _has_job_flags(parser) else set()
    rows = [_row(param, parser) for param in params if param.name not in shared | _HIDDEN]
    return table(("option", "meaning"), [row for row in rows if row]) if any(rows) else ""


def _has_job_flags(parser: Any) -> bool:
    return any(param.name == FLAGS[-1].name for param in parser.params)


def _job_flags() -> str:
    [submit] = [command.parser for command in commands() if command.name == "submit"]
    names = [flag.name for flag in FLAGS if flag.name != "command"]
    rows = [_row(param, submit) for name in names for param in submit.params if param.name == name]
    return table(("option", "meaning"), [row for row in rows if row])


def _row(param: Any, parser: Any) -> tuple[str, str] | None:
    """Return spelling and meaning; None for arguments without a help text, which the usage shows."""
    record = param.get_help_record(_context(parser, ""))
    if record is None or record[1].strip() in ("", "[required]"):
        return None
    spelling, meaning = record
    return code(" ".join(spelling.split())), meaning


def exit_codes() -> str:
    """Return a table of exit codes, from the exceptions of the SDK that the command line maps to them."""
    rows = [("0", "done")]
    rows += [(str(command.exit_code), docstring_of(command)) for command in exceptions()]
    return table(("code", "when"), rows)


def exceptions() -> list[type[errors.GpuschedError]]:
    """Return the exceptions that map to an exit code, by code."""
    return sorted(errors.GpuschedError.__subclasses__(), key=lambda command: command.exit_code)


def docstring_of(kind: type) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split())
