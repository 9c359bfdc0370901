"""Run a command of the user to its end, within a time and an amount of output: a look at a rule must not use up the
machine, however often it is repeated."""

import os
import selectors
import signal
import subprocess
import time
from contextlib import suppress

from gpusched.client.errors import Invalid

MAX_SECONDS = 30.0
MAX_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16


class CannotLook(Exception):
    """The list cannot be read now."""


def output(command: list[str]) -> list[str]:
    """Return the lines that a command prints. Raise CannotLook if it fails, since lines that are missing for a moment
    would be new afterwards; Invalid if it does not exist."""
    try:
        # In a session of its own: what it has started, such as the parts of a pipeline, can be ended with it.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )
    except OSError as error:
        raise Invalid(f"{command[0]}: {error.strerror}", next_step="correct `command` in the rules") from error
    with process:
        try:
            printed, errors = _read(process, command[0])
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        reason = errors.decode(errors="replace").strip()[-200:]
        raise CannotLook(f"{command[0]} ended with {process.returncode}: {reason}")
    return printed.decode(errors="replace").splitlines()


def _read(process: "subprocess.Popen[bytes]", name: str) -> tuple[bytearray, bytearray]:
    """Return what a process prints to its end, and the last of its errors. Raise CannotLook if that is too much or
    takes too long."""
    assert process.stdout is not None and process.stderr is not None
    until, printed, errors = time.monotonic() + MAX_SECONDS, bytearray(), bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ, printed)
        selector.register(process.stderr, selectors.EVENT_READ, errors)
        while selector.get_map():
            remaining = until - time.monotonic()
            ready = selector.select(remaining) if remaining > 0 else []
            if not ready:
                raise CannotLook(f"{name} has not ended after {MAX_SECONDS:g} s")
            for key, _ in ready:
                piece = os.read(key.fd, _PIECE_BYTES)
                key.data.extend(piece)
                if not piece:
                    selector.unregister(key.fileobj)
            del errors[:-_PIECE_BYTES]
            if len(printed) > MAX_BYTES:
                raise CannotLook(f"{name} prints more than {MAX_BYTES >> 20} MiB")
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired as error:
        raise CannotLook(f"{name} has not ended after {MAX_SECONDS:g} s") from error
    return printed, errors
