"""Kills every part of the system at random while short jobs flow, and counts what went wrong.

`--jobs 2000 --seconds 300` is the long run."""

from dataclasses import asdict

from benchmarks.report import arguments, publish
from tests.system.chaos import storm


def main() -> None:
    options = arguments(__doc__ or "", jobs=2000, seconds=300, seed=1, faults_every=10)
    outcome = storm(options.jobs, options.seconds, options.seed, options.faults_every)
    publish(asdict(outcome), options.json, outcome.failures)


if __name__ == "__main__":
    main()
