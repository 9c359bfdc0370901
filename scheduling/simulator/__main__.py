"""The program behind `gpusched simulate`: `manage.py simulate jobs` under that name, in a process of its own."""

import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter

from scheduling.simulator.cli import jobs
from scheduling.simulator.errors import InputError

_DESCRIPTION = """gpusched simulate trace.csv
gpusched simulate trace.csv --nodes 12 --policy shortest --plot shortest.svg

Replays a trace of jobs, or your own history, under any policy and quota; needs no running server. The format of a
trace, and the assumptions: docs/simulator.md."""


def main() -> None:
    parser = ArgumentParser("gpusched simulate", description=_DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    jobs.add_arguments(parser)
    options = vars(parser.parse_args())
    try:
        jobs.run(options, sys.stdout)
    except InputError as problem:
        sys.exit(f"error: {problem}")
    except OSError as problem:
        sys.exit(f"error: {problem.filename or 'the output'}: {problem.strerror}")


if __name__ == "__main__":
    main()
