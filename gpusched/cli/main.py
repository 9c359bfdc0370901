"""Entry point of the `gpusched` command, and what becomes of output that cannot be written."""

import io
import os
import sys

from gpusched import __version__


def main() -> None:
    _open_streams()
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _leave()  # who reads has had enough
    except OSError as error:
        print(f"error: {_sentence(error)}", file=sys.stderr, flush=True)
        _leave()


def _run() -> None:
    if sys.argv[1:] in (["version"], ["--version"]):
        # The parser takes half a second to load, most of it for checking values; this answer needs none of it.
        print(f"gpusched {__version__}")
        return
    from gpusched.cli.app import app

    app(prog_name="gpusched")


def _open_streams() -> None:
    """Python has None for a stream that the shell closed (`>&-`): reading is then at its end, and writing data refused
    when it is tried. In this order, so that no other file gets one of their numbers."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull)  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As stderr has it: a character that the terminal's encoding lacks is shown by its number.
        sys.stdout.reconfigure(errors="backslashreplace")


def _sentence(error: OSError) -> str:
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    said = "stdout is closed" if isinstance(error, io.UnsupportedOperation) else error.strerror or str(error)
    return f"the output cannot be written: {said}"


def _leave() -> None:
    """With exit code 1. What is still in the buffer is thrown away, or Python would try to write it once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(1)


if __name__ == "__main__":
    main()
