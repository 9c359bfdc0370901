"""Reduces a command to its template: what repeats from run to run, without numbers, dates, hashes and file names."""

import re
import shlex
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

# A shell that runs the text after `-c`, and programs that run the script after them.
_SHELLS = {"sh", "bash", "dash", "zsh"}
_SCRIPT_SUFFIXES = (".py", ".sh", ".R", ".jl", ".pl", ".lua", ".ipynb")
# A hash or UUID: at least seven hexadecimal digits, one of them a decimal digit.
_HASH = re.compile(r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{7,}(?:-[0-9a-fA-F]{4,})*\b")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
# Dates and ranges leave numbers with separators between them: 2026-11-23T10:00 becomes one mark.
_MARKS = re.compile(r"#(?:[-_:.,T/Z+]*#)+Z?")
MAX_CHARACTERS = 2000


@lru_cache(8192)
def template_of(command: tuple[str, ...]) -> str:
    """Return the template of a command. Runs that differ only in numbers, dates, hashes or the last part of a path have
    the same one."""
    parts = [_strip_variable(part, is_program=number in _named(command)) for number, part in enumerate(_words(command))]
    return " ".join(parts)[:MAX_CHARACTERS]


@lru_cache(8192)
def digest_of(command: tuple[str, ...]) -> str:
    """Return the digest by which the template is stored: a command may hold secrets, so its text is not kept."""
    return blake2b(template_of(command).encode(), digest_size=9).hexdigest()


def label_of(command: Sequence[str]) -> str:
    """Return the name by which people know the command: its script, or else its program."""
    words = _words(tuple(command))
    script = next((word for word in words if word.endswith(_SCRIPT_SUFFIXES)), words[0] if words else "")
    return script.rpartition("/")[2][:100]


def _words(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a command; those of the text if it is a shell with `-c`."""
    if len(command) >= 3 and command[0].rpartition("/")[2] in _SHELLS and command[1] in ("-c", "-lc"):
        try:
            return tuple(shlex.split(command[2])) or command
        except ValueError:  # a quote is open
            return tuple(command[2].split()) or command
    return command


def _named(command: tuple[str, ...]) -> set[int]:
    """Return the positions of the program and of its script, whose names matter and whose folders do not."""
    words = _words(command)
    script = next((number for number, word in enumerate(words) if word.endswith(_SCRIPT_SUFFIXES)), 0)
    return {0, script}


def _strip_variable(word: str, *, is_program: bool) -> str:
    if is_program:
        return word.rpartition("/")[2]
    name, equals, value = word.partition("=")
    if equals and name.startswith("-"):
        return f"{name}={_strip_variable(value, is_program=False)}"
    if "/" in word:
        word = word.rstrip("/").rpartition("/")[0] + "/"
    return _MARKS.sub("#", _NUMBER.sub("#", _HASH.sub("#", word)))
