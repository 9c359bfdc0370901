"""What documents have from the code is what the code has now; `make reference` writes it (A54)."""

import re

import pytest

from deploy.reference import documents, sdk
from deploy.reference.command_line import PROGRAMS, commands, help_of
from deploy.reference.parts import COMMAND, fill_parts, part_names
from tests.docs.reading import ROOT

GENERATED = documents.generate()


@pytest.mark.parametrize("path", GENERATED, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_reference_is_as_the_code_has_it(path):
    """A54."""
    found = path.read_text() if path.exists() else ""
    assert found == GENERATED[path], (
        f"{path.relative_to(ROOT)} is not as the code has it; run `{COMMAND}` and commit it"
    )


def test_every_generator_writes_somewhere():
    used = {name for path in GENERATED for name in part_names(path.read_text())}
    assert used == set(documents.PARTS)


def test_a_part_that_was_edited_by_hand_is_written_anew():
    text = "before\n<!-- from the code: exit-codes -->\nby hand\n<!-- until here -->\nafter\n"
    assert fill_parts(text, {"exit-codes": lambda: "made\n"}) == text.replace("by hand", "made")
    with pytest.raises(KeyError):
        fill_parts(text, {})


def test_every_method_of_the_sdk_says_what_it_does():
    """A54"""
    assert not re.findall(r"^\| `\w+\(.*\)` \|\s*\|$", sdk.reference(), re.M)


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_has_a_sentence_and_an_example(program):
    """A54: what the reference is made of is there."""
    for command in commands(program):
        told = help_of(command.parser.help)
        assert told.summary.endswith("."), command.name
        assert any(re.search(rf"\b{command.heading}\b", line) for line in told.examples), command.name
        for param in command.parser.params:
            assert param.param_type_name == "argument" or param.help, f"{command.name}: {param.name} says nothing"
