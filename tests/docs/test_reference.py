"""Generated documentation matches the code; `make reference` writes it (A54)."""

import re

import pytest

from deploy.reference import documents, sdk
from deploy.reference.command_line import PROGRAMS, commands, help_of
from deploy.reference.parts import COMMAND, fill_parts, part_names
from tests.docs.reading import ROOT

GENERATED = documents.generate()


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: str(path.relative_to(ROOT)))
def test_reference_matches_the_code(path):
    """A54."""
    text = path.read_text() if path.exists() else ""
    assert text == GENERATED[path], f"{path.relative_to(ROOT)} differs from the code; run `{COMMAND}` and commit it"


def test_every_generator_is_used():
    used = {name for path in GENERATED for name in part_names(path.read_text())}
    assert used == set(documents.PARTS)


def test_edited_part_is_regenerated():
    text = "before\n<!-- from the code: exit-codes -->\nby hand\n<!-- until here -->\nafter\n"
    assert fill_parts(text, {"exit-codes": lambda: "made\n"}) == text.replace("by hand", "made")
    with pytest.raises(KeyError):
        fill_parts(text, {})


def test_sdk_methods_have_docstrings():
    """A54"""
    assert not re.findall(r"^\| `\w+\(.*\)` \|\s*\|$", sdk.reference(), re.M)


@pytest.mark.parametrize("program", PROGRAMS)
def test_commands_have_a_summary_and_an_example(program):
    """A54: the reference is generated from these."""
    for command in commands(program):
        help_text = help_of(command.parser.help)
        assert help_text.summary.endswith("."), command.name
        assert any(re.search(rf"\b{command.heading}\b", line) for line in help_text.examples), command.name
        for param in command.parser.params:
            assert param.param_type_name == "argument" or param.help, f"{command.name}: {param.name} has no help text"
