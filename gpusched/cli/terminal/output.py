"""Print data to stdout: as a table, JSON, JSON lines, CSV or just names."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, Generic, TypeVar

import typer

from gpusched.cli.terminal.messages import note, printable
from gpusched.protocol import amounts
from gpusched.protocol.csv_cells import as_text

T = TypeVar("T")
Cell = str | int | float | bool | datetime | None


class Format(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"
    NAME = "name"


def _without_csv(form: Format) -> Format:
    """Refuse CSV before the command changes anything: a token that was created would never be printed."""
    if form is Format.CSV:
        raise typer.BadParameter("csv is for lists; use json")
    return form


OutputOption = Annotated[Format, typer.Option("--output", "-o", help="Output format.")]
# Of a command that prints a single object.
ObjectOption = Annotated[Format, typer.Option("--output", "-o", help="Output format.", callback=_without_csv)]


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table. `is_wide`: only in `-o wide` and `-o csv`. `is_state`: coloured on a terminal."""

    title: str
    value: Callable[[T], Cell]
    is_wide: bool = False
    is_state: bool = False


def items(rows: Sequence[T], columns: Sequence[Column[T]], form: Format, name: Callable[[T], Cell]) -> None:
    """Print a list. JSON has all fields of the items; tables and CSV have the columns."""
    if form is Format.JSON:
        _json(list(rows))
    elif form is Format.JSONL:
        for row in rows:
            _json_line(row)
    elif form is Format.NAME:
        _write("".join(f"{name(row)}\n" for row in rows))
    elif form is Format.CSV:
        _csv(rows, columns)
    else:
        # Never cut the output of a pipe.
        is_cut = form is Format.TABLE and sys.stdout.isatty()
        _write(
            "".join(
                f"{line}\n" for line in table(rows, columns, form, width_limit=_terminal_width() if is_cut else None)
            )
        )


def at_most(limit: int, rows: Sequence[T], *, has_note: bool = True) -> Sequence[T]:
    """Return the first `limit` rows. The caller requests one more than that, which shows whether there are more."""
    if len(rows) > limit and has_note:
        note(f"there are more than {limit}; see --limit")
    return rows[:limit]


def table(
    rows: Sequence[T], columns: Sequence[Column[T]], form: Format, *, width_limit: int | None, is_clipped: bool = False
) -> list[str]:
    """Return the lines of a table, its titles first. With `width_limit` (columns of the terminal) the last column, a
    sentence, is shortened; `is_clipped`: no line is longer than that."""
    from rich.cells import cell_len, set_cell_size

    visible = [column for column in columns if form is Format.WIDE or not column.is_wide]
    cells = [[printable(_text(c.value(row))).replace("\n", " ") for c in visible] for row in rows]
    widths = [max(map(cell_len, [c.title, *(line[i] for line in cells)])) for i, c in enumerate(visible)]
    if width_limit is not None:
        widths[-1] = min(widths[-1], max(width_limit - sum(widths[:-1]) - 2 * len(widths[:-1]), 10))
    if width_limit is not None and is_clipped:
        starts = [sum(widths[:i]) + 2 * i for i in range(len(widths))]
        widths = [max(0, min(width, width_limit - start)) for width, start in zip(widths, starts, strict=True)]
    is_coloured = has_colour()
    lines = []
    for line in [[c.title for c in visible], *cells]:
        sized = [set_cell_size(cell, width) for cell, width in zip(line, widths, strict=True)]
        if is_coloured:
            sized = [_coloured(cell) if c.is_state else cell for cell, c in zip(sized, visible, strict=True)]
        lines.append("  ".join(cell for cell in sized if cell).rstrip())
    return lines


def one(item: object, form: Format, text: str, name: Cell) -> None:
    """Print a single object: `text` for people, or JSON, or its name. The command has an ObjectOption."""
    if form is Format.JSON:
        _json(item)
    elif form is Format.JSONL:
        _json_line(item)
    elif form is Format.NAME:
        _write(f"{name}\n")
    elif text:
        _write(printable(text) + "\n")


def age(moment: datetime | None, until: datetime | None = None) -> str:
    """Return the time since `moment` (or from it to `until`) in its largest unit: 40s, 12m, 5h, 3d."""
    if moment is None:
        return ""
    seconds = max(0, int(((until or datetime.now(UTC)) - moment).total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def _terminal_width() -> int:
    return shutil.get_terminal_size().columns


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _json(value: object) -> None:
    import msgspec

    _write(as_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n")


def _json_line(value: object) -> None:
    import msgspec

    _write(as_json(msgspec.json.encode(value).decode()) + "\n")


def as_json(text: str) -> str:
    """Return the text of JSON with JSON's own escapes for what `printable` escapes, and for what stdout cannot encode:
    it would write both as Python does, which is no JSON."""
    if text.isascii():
        return text
    return "".join(char if char.isascii() or _is_plain(char) else json.dumps(char)[1:-1] for char in text)


def _is_plain(char: str) -> bool:
    try:
        char.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return printable(char) == char


def _csv(rows: Sequence[T], columns: Sequence[Column[T]]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow([column.title.lower() for column in columns])
    writer.writerows([printable(_text(as_text(column.value(row)))) for column in columns] for row in rows)


def has_colour() -> bool:
    """Return True on a terminal that supports colour, unless NO_COLOR is set (no-color.org)."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_COLOURS: dict[str, str] = {
    **dict.fromkeys(("running", "completed", "online", "ok"), "green"),
    **dict.fromkeys(("pending", "held", "scheduled", "stopping", "cordoned", "draining", "hot"), "yellow"),
    **dict.fromkeys(("failed", "lost", "dirty", "degraded", "foreign", "quarantined"), "red"),
    **dict.fromkeys(("cancelled", "preempted"), "bright_black"),
}


def _coloured(cell: str) -> str:
    colour = _COLOURS.get(cell.strip())
    return typer.style(cell, fg=colour) if colour else cell


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return amounts.exact(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return str(value)
