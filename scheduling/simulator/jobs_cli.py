"""The `simulate jobs` command: its options, its table and its JSON."""

from argparse import ArgumentParser
from typing import Any, TextIO


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", help="the trace")


def run(options: dict[str, Any], stdout: TextIO) -> None:
    raise NotImplementedError
