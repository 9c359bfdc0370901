"""Output of benchmarks: a table for people, one line of JSON for programs, and a failure if any operation failed."""

import argparse
import json
import signal
import sys
from collections.abc import Sequence


def arguments(text: str, **defaults: int) -> argparse.Namespace:
    """Parse the command line of a benchmark: --json, and whole numbers with defaults. From now on, SIGTERM ends it with
    all that it has started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object")
    for name, value in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    return parser.parse_args()


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the sorted values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def publish(figures: dict[str, float | int | str], as_json: bool, failures: int = 0) -> None:
    """Print the figures; exit with 1 if an operation failed, since figures of a failed run mean nothing."""
    figures = {**figures, "failed_operations": failures}
    for name, value in figures.items():
        print(f"  {name:<40} {value:>12.3f}" if isinstance(value, float) else f"  {name:<40} {value:>12}")
    if as_json:
        print(json.dumps(figures))
    sys.exit(1 if failures else 0)
