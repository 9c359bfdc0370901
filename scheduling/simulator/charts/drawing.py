"""Writes a chart to a file: as SVG, which needs no library, or as PNG, which needs Pillow."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from scheduling.simulator.charts.chart import HEIGHT, WIDTH, Label, Line
from scheduling.simulator.errors import InputError

# PNG is drawn larger than it is laid out, for screens with small pixels.
_SCALE = 2
_TEXT = "#27272a"


def write(path: Path, lines: Sequence[Line], labels: Sequence[Label]) -> None:
    """Write the chart. Raises InputError for a name that ends in neither .svg nor .png, OSError if writing fails."""
    check(path)
    if path.suffix == ".svg":
        path.write_text(svg(lines, labels), encoding="utf-8")
    else:
        _write_png(path, lines, labels)


def check(path: Path) -> None:
    """Raise InputError as `write` would: called before a replay that takes minutes."""
    if path.suffix not in (".svg", ".png"):
        raise InputError(f"{path}: a plot is written as .svg or .png.")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no such folder to write it to.")


def svg(lines: Sequence[Line], labels: Sequence[Label]) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for line in lines:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{line.colour}" stroke-width="{line.width}"/>')
    for (x, y), text, anchor, size in labels:
        parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{_TEXT}">'
            f"{escape(text)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def _write_png(path: Path, lines: Sequence[Line], labels: Sequence[Label]) -> None:
    from PIL import Image, ImageDraw, ImageFont  # here, as it costs a tenth of a second and few ask for it

    image = Image.new("RGB", (WIDTH * _SCALE, HEIGHT * _SCALE), "#ffffff")
    draw = ImageDraw.Draw(image)
    for line in lines:
        points = [(x * _SCALE, y * _SCALE) for x, y in line.points]
        draw.line(points, fill=line.colour, width=round(line.width * _SCALE), joint="curve")
    anchors = {"start": "ls", "middle": "ms", "end": "rs"}
    for (x, y), text, anchor, size in labels:
        font = ImageFont.load_default(size * _SCALE)
        draw.text((x * _SCALE, y * _SCALE), text, fill=_TEXT, font=font, anchor=anchors[anchor])
    image.save(path)
