"""Parse durations of the command line, like 90m, 2h or 1d12h."""

import re

import typer

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhdw])+")


def seconds_of(text: str) -> int:
    """Return the seconds of a duration. Wrong usage for anything else."""
    if not _DURATION.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is not a duration; write it like 90m, 2h or 1d12h", param_hint="--for")
    return round(sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)([smhdw])", text)))
