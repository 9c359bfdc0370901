"""Kills every part of the system at random while inference requests are submitted, served and cancelled; counts what
went wrong."""

from dataclasses import asdict

from benchmarks.report import arguments, publish
from tests.system.serving_chaos import serving_storm


def main() -> None:
    options = arguments(__doc__ or "", requests=20_000, seconds=120, seed=1)
    outcome = serving_storm(options.requests, options.seconds, options.seed)
    publish(asdict(outcome), options.json, outcome.failures)


if __name__ == "__main__":
    main()
