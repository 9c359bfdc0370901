"""docs/simulator.md names each option of `simulate jobs`, each field of its JSON and each column of the csv format."""

import re
from argparse import ArgumentParser
from pathlib import Path

from scheduling.simulator.cli.jobs import add_arguments
from scheduling.simulator.runs.statistics import figures, summary
from scheduling.simulator.runs.trace_replay import JobResult, Run
from scheduling.simulator.traces.formats import CSV_COLUMNS
from scheduling.simulator.traces.jobs import TraceJob

DOCUMENT = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text()


def first_cells(header: str) -> set[str]:
    """The words in backticks of the first column of the table that begins so."""
    table = DOCUMENT.split(f"\n{header}", 1)[1].split("\n\n", 1)[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("|")]
    return {word for row in rows for word in re.findall(r"`([^`]+)`", row)}


def test_every_option_is_documented_and_every_documented_option_exists() -> None:
    """A54."""
    parser = ArgumentParser(add_help=False)
    add_arguments(parser)
    options = {flag for action in parser._actions for flag in action.option_strings}
    assert first_cells("| option |") == options


def test_every_field_and_column_is_documented() -> None:
    """A54."""
    result = JobResult(TraceJob(1, "a", 0.0, 1, 1.0), 0.0, 1.0)
    fields = {*summary([figures([(Run([result]), 8)])]), "policy", "never_fit"}
    assert first_cells("| field |") == fields
    assert first_cells("| column |") == {*CSV_COLUMNS}
