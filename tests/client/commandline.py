"""Run the `gpusched` command, inside this process (fast) or as a real one; and a table of all its commands."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import typer
from typer.testing import CliRunner

from gpusched.cli.app import app

ROOT = Path(__file__).parents[2]

# Every command with arguments that reach the server. A test checks that none is missing.
COMMANDS: dict[str, list[str]] = {
    "submit": ["submit", "--gpus", "1", "--", "true"],
    "submit --dry-run": ["submit", "--dry-run", "--gpus", "1", "--", "true"],
    "run": ["run", "--gpus", "1", "--", "true"],
    "ps": ["ps"],
    "why": ["why", "42"],
    "attempts": ["attempts", "42"],
    "logs": ["logs", "42"],
    "logs -f": ["logs", "-f", "42"],
    "logs --tail": ["logs", "--tail", "5", "42"],
    "cancel": ["cancel", "42"],
    "hold": ["hold", "42"],
    "release": ["release", "42"],
    "requeue": ["requeue", "42"],
    "retry": ["retry", "42"],
    "elements": ["elements", "42"],
    "extend": ["extend", "42", "--by", "30"],
    "signal": ["signal", "42", "USR1"],
    "wait": ["wait", "42"],
    "queue": ["queue"],
    "queue --usage": ["queue", "--usage"],
    "history": ["history"],
    "history ID": ["history", "42"],
    "events": ["events", "--once"],
    "share": ["share"],
    "top": ["top"],
    "nodes": ["nodes"],
    "node show": ["node", "show", "n1"],
    "node label": ["node", "label", "n1", "zone=a", "old-"],
    "node taint": ["node", "taint", "n1", "dedicated=ml:NoSchedule", "spot-"],
    "node cordon": ["node", "cordon", "n1"],
    "node drain": ["node", "drain", "n1"],
    "node uncordon": ["node", "uncordon", "n1"],
    "node rotate-credential": ["node", "rotate-credential", "n1"],
    "node remove": ["node", "remove", "n1", "--yes"],
    "gpu quarantine": ["gpu", "quarantine", "2", "--note", "noisy"],
    "gpu clear": ["gpu", "clear", "2"],
    "gpu retire": ["gpu", "retire", "2"],
    "node join-token": ["node", "join-token"],
    "quota": ["quota"],
    "policy": ["policy"],
    "policy set": ["policy", "online_percent=20"],
    "quota set": ["quota", "nlp", "--max-gpus", "4"],
    "tenant list": ["tenant", "list"],
    "tenant show": ["tenant", "show", "nlp"],
    "tenant create": ["tenant", "create", "nlp"],
    "tenant rename": ["tenant", "rename", "nlp", "language"],
    "tenant archive": ["tenant", "archive", "nlp", "--cancel-jobs", "--yes"],
    "tenant unarchive": ["tenant", "unarchive", "nlp"],
    "user list": ["user", "list"],
    "user show": ["user", "show", "kim"],
    "user create": ["user", "create", "kim", "--email", "kim@example.com"],
    "user edit": ["user", "edit", "kim", "--admin"],
    "user disable": ["user", "disable", "kim", "--yes"],
    "user enable": ["user", "enable", "kim"],
    "user reset-password": ["user", "reset-password", "kim", "--yes"],
    "user change-password": ["user", "change-password", "--password-stdin"],
    "member list": ["member", "list", "nlp"],
    "member add": ["member", "add", "nlp", "kim"],
    "member set-role": ["member", "set-role", "nlp", "kim", "owner"],
    "member remove": ["member", "remove", "nlp", "kim", "--yes"],
    "token list": ["token", "list"],
    "token create": ["token", "create", "ci"],
    "token revoke": ["token", "revoke", "7"],
    "token list --service": ["token", "list", "--service", "nlp"],
    "token create --service": ["token", "create", "nightly", "--service", "nlp", "--role", "viewer"],
    "token revoke --service": ["token", "revoke", "9", "--service", "nlp"],
    "usage": ["usage", "nlp", "--by", "user"],
    "budget": ["budget", "nlp"],
    "budget set": ["budget", "nlp", "--hard", "100"],
    "rate list": ["rate", "list"],
    "rate set": ["rate", "set", "H100", "2.5"],
    "rate end": ["rate", "end", "3"],
    "audit": ["audit"],
    "incidents": ["incidents", "--open"],
    "cycles": ["cycles"],
    "cycles replay": ["cycles", "replay", "9"],
    "exempt list": ["exempt", "list"],
    "exempt add": ["exempt", "add", "--job", "42", "--note", "by night"],
    "exempt end": ["exempt", "end", "5"],
    "reserve create": ["reserve", "create", "--gpus", "2", "--from", "2030-01-01T08:00:00Z", "--for", "2h"],
    "reserve list": ["reserve", "list"],
    "reserve next": ["reserve", "next", "--gpus", "2", "--for", "90m"],
    "reserve shorten": ["reserve", "shorten", "7"],
    "reserve cancel": ["reserve", "cancel", "--yes", "7"],
    "lease": ["lease", "--gpus", "2", "--for", "2h"],
    "lease renew": ["lease", "renew", "7", "--for", "1d12h"],
    "lease end": ["lease", "end", "7"],
    "endpoint create": ["endpoint", "create", "--gpus", "1", "embed", "--", "python", "serve.py"],
    "endpoint list": ["endpoint", "list"],
    "endpoint show": ["endpoint", "show", "embed"],
    "endpoint set": ["endpoint", "set", "--max", "2", "embed"],
    "endpoint drain": ["endpoint", "drain", "embed"],
    "endpoint rm": ["endpoint", "rm", "--yes", "embed"],
    "task submit": ["task", "submit", "embed", "a text"],
    "task submit --wait": ["task", "submit", "--wait", "embed", "a text"],
    "task status": ["task", "status", "17"],
    "task wait": ["task", "wait", "17"],
    "task result": ["task", "result", "17"],
    "task cancel": ["task", "cancel", "17"],
    "notify add": ["notify", "add", "mail", "--kind", "job_failed"],
    "notify webhook": ["notify", "webhook", "ci", "--kind", "job_failed"],
    "notify list": ["notify", "list"],
    "notify edit": ["notify", "edit", "4", "--off"],
    "notify test": ["notify", "test", "4"],
    "notify rotate": ["notify", "rotate", "5"],
    "notify remove": ["notify", "remove", "4", "--yes"],
    "notify deliveries": ["notify", "deliveries", "--route", "4"],
    "notify replay": ["notify", "replay", "8"],
    "whoami": ["whoami"],
    "secret set": ["secret", "set", "wandb", "-t", "nlp"],
    "secret list": ["secret", "list", "-t", "nlp"],
    "secret delete": ["secret", "delete", "wandb", "-t", "nlp", "--yes"],
    "login": ["login", "-u", "ada", "--password-stdin"],
    "version": ["version", "--server"],
}

# The first needs no server; the others read messages, rules or the config file first (tests/e2e/test_mcp.py,
# tests/client/test_watch.py, tests/client/test_cli_logout.py).
OFFLINE = {"simulate", "mcp", "watch", "logout"}
# This runs until it is stopped, if it does not fail.
ENDLESS = {"forward": ["forward", "42", "0:8888"]}

# Built once: the runner's own `invoke` builds all commands anew each time, which takes longer than the tests.
command = typer.main.get_command(app)


@dataclass(frozen=True)
class Result:
    exit_code: int
    stdout: str
    stderr: str


def call(url: str, *args: str, stdin: str | bytes = "", env: Mapping[str, str] | None = None) -> Result:
    """Runs the command in this process; an exception that it does not turn into an exit code is raised here."""
    with CliRunner().isolation(input=stdin, env={"GPUSCHED_URL": url, **(env or {})}) as streams:
        try:
            command.main(list(args), prog_name="gpusched")
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
        sys.stderr.flush()
        out, err = streams[0].getvalue(), streams[1].getvalue()
    assert isinstance(code, int)
    return Result(code, out.decode(), err.decode())


def start(url: str, *args: str, terminal: int | None = None, **env: str) -> subprocess.Popen[bytes]:
    """`terminal`: has it as its own, in place of pipes."""
    return subprocess.Popen(
        [sys.executable, "-m", "gpusched.cli.main", *args],
        cwd=ROOT,
        env={**os.environ, "GPUSCHED_URL": url, "PYTHONUNBUFFERED": "", **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=as_at_a_terminal if terminal is None else partial(_at, terminal),
    )


def _at(terminal: int) -> None:
    as_at_a_terminal()
    os.login_tty(terminal)


def as_at_a_terminal() -> None:
    """Restore the signals that a shell or nohup ignores for background processes; a child would inherit that."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
