"""Each code block of the documents is what it says it is: commands parse, addresses, targets and files exist (A54).

Which of them are run: tests/e2e/test_guides.py."""

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
def test_a_shell_block_is_one_whose_commands_exist(block: Block) -> None:
    """A54."""
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for words in commands(block.text):
        require_known(words, block.document)
    for address in re.findall(r"(?:GPUSCHED_URL|:8000|://gpusched\.example)(/[\w/{}.-]+)", block.text):
        resolve(re.sub(r"\b(?:ID|NAME|TENANT)\b", "1", address))


def require_known(words: list[str], document: Path) -> None:
    """Fails where a command of ours, a make target or a file of the checkout that the words name does not exist."""
    program = Path(words[0]).name
    if program in PROGRAMS:
        parse(PROGRAMS[program], words[1:])
    elif program == "make":
        wanted = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        assert set(wanted) <= TARGETS, f"{document.name}: make {' '.join(wanted)}"
    elif program.startswith("python") and "manage.py" in words:
        django_command(words[words.index("manage.py") + 1 :])
    for word in words:
        if re.fullmatch(r"(?:deploy|benchmarks|tests|docs)/[\w./-]+", word):
            assert (ROOT / word).exists(), f"{document.name} names {word}"


def parse(parser: Any, words: list[str]) -> None:
    """Reads words as the program does, without doing anything. Raises what it would print. `$…` is a number."""
    words = ["1" if "$" in word or word in ("ID", "N", "FIRST") else word for word in words]
    before: list[str] = []
    while words and words[0].startswith("-"):
        before.append(words.pop(0))
    if before[-1:] in (["--url"], ["--token-file"]):
        words.pop(0)
    while hasattr(parser, "commands") and words and not (parser.invoke_without_command and words[0].startswith("-")):
        assert words[0] in parser.commands, f"there is no command {words[0]}"
        parser = parser.commands[words.pop(0)]
    if not hasattr(parser, "commands") or parser.invoke_without_command:
        parser.make_context("documented", words).close()


def django_command(words: list[str]) -> None:
    apps = get_commands()
    assert words[0] in apps, f"there is no manage.py {words[0]}"
    app_name = apps[words[0]]
    command = app_name if not isinstance(app_name, str) else load_command_class(app_name, words[0])
    if app_name != "django.contrib.auth":
        command.create_parser("manage.py", words[0]).parse_args(words[1:])


@pytest.mark.parametrize("command", [one for name in PROGRAMS for one in commands_of(name)], ids=lambda c: c.heading)
def test_the_examples_of_a_command_parse(command: Any) -> None:
    """A54: what the reference shows, and `--help`."""
    for example in help_of(command.parser.help).examples:
        for words in commands(re.sub(r"   \(.*\)$", "", example)):
            require_known(words, ROOT / "docs/reference/cli.md")


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_commands_in_sentences_exist(document: Path) -> None:
    """A54: `gpusched COMMAND …` in backticks names a command and flags that are there; it may leave words out."""
    prose = re.sub(r"```.*?```", "", document.read_text(), flags=re.S)
    for text in re.findall(r"`(gpusched(?:-agent)? [a-z][^`]*)`", prose):
        words = text.split()
        parser = PROGRAMS[words.pop(0)]
        while words and hasattr(parser, "commands"):
            word = words.pop(0)
            assert word in parser.commands, f"{document.name}: {text}"
            parser = parser.commands[word]
        known = {flag for param in parser.params for flag in (*param.opts, *param.secondary_opts)} | {"--help"}
        if parser.context_settings.get("allow_interspersed_args") is False:  # the rest is the job's
            words = words[: next((at for at, word in enumerate(words) if not word.startswith("-")), None)]
        flags = [word for word in words if re.match(r"--?[a-z]", word)]
        assert {flag.split("=")[0] for flag in flags} <= known, f"{document.name}: {text}"


@pytest.mark.parametrize("block", [block for block in ALL if block.kind != "sh"], ids=named)
def test_other_blocks_are_of_their_kind(block: Block) -> None:
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
            assert kind in ("text", "nginx", "http"), f"nobody looks at blocks of {kind}"
