"""Check each code block of the documents: commands parse; addresses, targets and files exist (A54).

tests/e2e/test_guides.py runs the blocks."""

import ast
import json
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.urls import resolve

from deploy.reference.command_line import PROGRAMS, help_of
from deploy.reference.command_line import commands as commands_of
from tests.docs.blocks import Block, blocks, commands, documents
from tests.docs.reading import ROOT, text_of

ALL = [block for document in documents() for block in blocks(document)]
SHELL = [block for block in ALL if block.kind == "sh"]
TARGETS = set(re.findall(r"^([a-z][\w-]*):", text_of("Makefile"), re.M))


def named(block: Block) -> str:
    return f"{block.document.relative_to(ROOT)}: {block.text.splitlines()[0][:60]}"


@pytest.mark.parametrize("block", SHELL, ids=named)
def test_shell_block_names_existing_commands(block: Block) -> None:
    """A54."""
    result = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    for tokens in commands(block.text):
        require_known(tokens, block.document)
    for address in re.findall(r"(?:GPUSCHED_URL|:8000|://gpusched\.example)(/[\w/{}.-]+)", block.text):
        resolve(re.sub(r"\b(?:ID|NAME|TENANT)\b", "1", address))


def require_known(tokens: list[str], document: Path) -> None:
    """Fail if a gpusched command, a make target or a file of the checkout does not exist."""
    program = Path(tokens[0]).name
    if program in PROGRAMS:
        parse(PROGRAMS[program], tokens[1:])
    elif program == "make":
        targets = [token for token in tokens[1:] if not token.startswith("-") and "=" not in token]
        assert set(targets) <= TARGETS, f"{document.name}: make {' '.join(targets)}"
    elif program.startswith("python") and "manage.py" in tokens:
        django_command(tokens[tokens.index("manage.py") + 1 :])
    for token in tokens:
        if re.fullmatch(r"(?:deploy|benchmarks|tests|docs)/[\w./-]+", token):
            assert (ROOT / token).exists(), f"{document.name} names {token}"


def parse(parser: Any, tokens: list[str]) -> None:
    """Parse tokens as the program does, without executing. Raise its errors. `$…` counts as a number."""
    tokens = ["1" if "$" in token or token in ("ID", "N", "FIRST") else token for token in tokens]
    options: list[str] = []
    while tokens and tokens[0].startswith("-"):
        options.append(tokens.pop(0))
    if options[-1:] in (["--url"], ["--token-file"], ["--ca-file"]):
        tokens.pop(0)
    while hasattr(parser, "commands") and tokens and not (parser.invoke_without_command and tokens[0].startswith("-")):
        assert tokens[0] in parser.commands, f"there is no command {tokens[0]}"
        parser = parser.commands[tokens.pop(0)]
    if not hasattr(parser, "commands") or parser.invoke_without_command:
        parser.make_context("documented", tokens).close()


def django_command(tokens: list[str]) -> None:
    apps = get_commands()
    assert tokens[0] in apps, f"there is no manage.py {tokens[0]}"
    app_name = apps[tokens[0]]
    command = app_name if not isinstance(app_name, str) else load_command_class(app_name, tokens[0])
    if app_name != "django.contrib.auth":
        command.create_parser("manage.py", tokens[0]).parse_args(tokens[1:])


@pytest.mark.parametrize("command", [one for name in PROGRAMS for one in commands_of(name)], ids=lambda c: c.heading)
def test_command_examples_parse(command: Any) -> None:
    """A54: in the reference and in `--help`."""
    for example in help_of(command.parser.help).examples:
        for tokens in commands(re.sub(r"   \(.*\)$", "", example)):
            require_known(tokens, ROOT / "docs/reference/cli.md")


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_inline_commands_exist(document: Path) -> None:
    """A54: `gpusched COMMAND …` in backticks names an existing command and flags; it may omit arguments."""
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    for text in re.findall(r"`(gpusched(?:-agent)? [a-z][^`]*)`", prose):
        tokens = text.split()
        parser = PROGRAMS[tokens.pop(0)]
        while tokens and hasattr(parser, "commands"):
            token = tokens.pop(0)
            assert token in parser.commands, f"{document.name}: {text}"
            parser = parser.commands[token]
        existing = {flag for param in parser.params for flag in (*param.opts, *param.secondary_opts)} | {"--help"}
        if parser.context_settings.get("allow_interspersed_args") is False:  # the rest is the job's
            tokens = tokens[: next((at for at, token in enumerate(tokens) if not token.startswith("-")), None)]
        flags = [token for token in tokens if re.match(r"--?[a-z]", token)]
        assert {flag.split("=")[0] for flag in flags} <= existing, f"{document.name}: {text}"


@pytest.mark.parametrize("block", [block for block in ALL if block.kind != "sh"], ids=named)
def test_other_blocks_parse(block: Block) -> None:
    match block.kind:
        case "python":
            compile(block.text, named(block), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        case "json":
            is_one = block.text.startswith("{\n") or block.text.count("\n{") == 0
            for text in [block.text] if is_one else block.text.splitlines():
                json.loads(text)
        case "yaml":
            yaml.safe_load(block.text)
        case "toml":
            tomllib.loads(block.text)
        case kind:
            assert kind in ("text", "nginx", "caddy", "http"), f"no test checks blocks of {kind}"
