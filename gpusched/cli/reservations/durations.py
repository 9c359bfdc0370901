"""Parse durations of the command line, like 90m, 2h or 1d12h."""

import re

import typer

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
# Longer numbers are no durations that a server accepts, and can exceed what a float holds.
_DURATION = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{1,15})?[smhdw])+")


def seconds_of(text: str) -> int:
    """Return the seconds of a duration. Wrong usage for anything else."""
    if not _DURATION.fullmatch(text):
        raise typer.BadParameter(f"{text!r} is not a duration; write it like 90m, 2h or 1d12h", param_hint="--for")
    return round(sum(float(number) * _UNITS[unit] for number, unit in re.findall(r"([\d.]+)([smhdw])", text)))
