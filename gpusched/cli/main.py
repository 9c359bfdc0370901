"""Entry point of the `gpusched` command."""

import sys

from gpusched import __version__


def main() -> None:
    if sys.argv[1:] in (["version"], ["--version"]):
        # The parser takes half a second to load, most of it for checking values; this answer needs none of it.
        print(f"gpusched {__version__}")
        return
    from gpusched.cli.app import app

    app(prog_name="gpusched")


if __name__ == "__main__":
    main()
