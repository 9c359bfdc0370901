"""Figures that gpusched claims, each measured by a script. docs/performance.md has the list."""

import sys
from pathlib import Path

# Python puts the directory of a script before all others: there, benchmarks/serving.py would hide the app `serving`.
sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != Path(__file__).resolve().parent]
