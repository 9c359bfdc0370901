"""Entry point of the `gpusched` command, and the handling of output that cannot be written."""

import io
import os
import sys

from gpusched import __version__


def main() -> None:
    _open_streams()
    sys.set_int_max_str_digits(0)  # the server refuses numbers that are too large; Python would raise ValueError
    try:
        try:
            _run()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _leave()  # the reader closed the pipe
    except KeyboardInterrupt:
        sys.exit(130)  # Ctrl-C while the modules load; commands handle it themselves
    except OSError as error:
        print(f"error: {_sentence(error)}", file=sys.stderr, flush=True)
        _leave()


def _run() -> None:
    if sys.argv[1:] in (["version"], ["--version"]):
        # The parser takes half a second to load, mostly for checking values, which this answer does not need.
        print(f"gpusched {__version__}")
        return
    from gpusched.cli.app import app

    app(prog_name="gpusched")


def _open_streams() -> None:
    """Replace the None that Python has for a stream that the shell closed (`>&-`): reading returns the end, and writing
    fails at the attempt. The order gives each file its standard number."""
    sys.stdin = sys.stdin or open(os.devnull)  # noqa: SIM115
    sys.stdout = sys.stdout or open(os.devnull)  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As on stderr: print a character that the terminal's encoding lacks by its number.
        sys.stdout.reconfigure(errors="backslashreplace")


def _sentence(error: OSError) -> str:
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    detail = "stdout is closed" if isinstance(error, io.UnsupportedOperation) else error.strerror or str(error)
    return f"the output cannot be written: {detail}"


def _leave() -> None:
    """Exit with code 1. Discard the buffer, or Python would try to write it again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(1)


if __name__ == "__main__":
    main()
