"""Serve batches inside a job: `serve(function)` calls `function` with lists of requests and returns its results.

It needs nothing but the standard library, so it runs in any environment in which this package can be imported."""

import contextlib
import json
import os
import queue
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpusched.protocol.batches import BYTES, JSON, SOCKET_NAME, BadFrame, Body, Decoder, Frame, encode

_MAX_MESSAGE = 2000
_MIB = 1 << 20
Function = Callable[[list[Any]], Sequence[Any]]
Functions = Mapping[str, Function]
Work = tuple[socket.socket, Frame]


def serve(function: Function | Functions, *, max_batch: int | None = None) -> None:
    """Serve until SIGTERM; a batch that has arrived is finished first.

    `function` gets a list of requests, each as decoded from JSON or as bytes, and returns a list of equal length: JSON
    values or bytes. An exception as an entry fails that request alone. An exception raised fails the batch, whose
    requests are then retried one by one. `max_batch`: the most requests that it accepts, below the endpoint's own.

    For a replica that several endpoints share, `function` is a mapping {name of the endpoint: function}; a batch has
    requests of one endpoint, and the endpoints take turns.

    Raises RuntimeError outside of a job that serves an endpoint."""
    folder = os.environ.get("GPUSCHED_SOCKET_DIR")
    if not folder:
        raise RuntimeError("GPUSCHED_SOCKET_DIR is not set: serve() works only in a job of an endpoint")
    path = Path(folder) / SOCKET_NAME
    path.unlink(missing_ok=True)  # of an earlier process of this job
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()  # None: SIGTERM arrived
    hello = encode(Frame("hello", {"version": 1, "max_batch": max_batch}))
    threading.Thread(target=_accept, args=(listener, hello, work), name="accept", daemon=True).start()
    if threading.current_thread() is threading.main_thread():
        # A SimpleQueue is reentrant: the signal may interrupt its own methods.
        signal.signal(signal.SIGTERM, lambda number, frame: work.put(None))
    while (next_work := work.get()) is not None:
        connection, frame = next_work
        _answer(connection, frame, function)
    path.unlink(missing_ok=True)


def _accept(listener: socket.socket, hello: bytes, work: "queue.SimpleQueue[Work | None]") -> None:
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_read, args=(connection, hello, work), name="read", daemon=True).start()


def _read(connection: socket.socket, hello: bytes, work: "queue.SimpleQueue[Work | None]") -> None:
    """Queue the batches of a connection until it ends."""
    decoder = Decoder()
    try:
        connection.sendall(hello)
        while data := connection.recv(_MIB):
            for frame in decoder.feed(data):
                if frame.kind == "batch":
                    work.put((connection, frame))
    except BadFrame as error:
        sys.stderr.write(f"gpusched.serve: {error}\n")
    except OSError:
        pass  # the control plane connects again
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _answer(connection: socket.socket, frame: Frame, function: Function | Functions) -> None:
    answer = encode(_run(frame, function))
    with contextlib.suppress(OSError):  # the connection broke: the control plane has queued the requests again
        connection.sendall(answer)


def _run(frame: Frame, function: Function | Functions) -> Frame:
    """Return the frame with the results of a batch, or with the reason why it failed as a whole."""
    batch = {"batch": frame.values.get("batch")}
    try:
        requests = [_decode(body) for body in frame.bodies]
        results = _function_of(frame, function)(requests)
        bodies = [_limited(_encode(result), frame) for result in results]
    except Exception as error:  # noqa: BLE001 - of the user's function: reported, and the next batch goes on
        traceback.print_exc()
        return Frame("failed", {**batch, "code": _code(error), "message": _message(error)})
    if len(bodies) != len(frame.bodies):
        message = f"the function returned {len(bodies)} results for {len(frame.bodies)} requests"
        return Frame("failed", {**batch, "code": "wrong_number_of_results", "message": message})
    size, limit = sum(len(body.data) for body in bodies), frame.values.get("max_results_bytes")
    if len(bodies) > 1 and limit is not None and size > limit:
        message = f"the results of the batch have {size} bytes together, more than {limit}"
        return Frame("failed", {**batch, "code": "results_too_large", "message": message})
    return Frame("results", batch, bodies)


def _function_of(frame: Frame, function: Function | Functions) -> Function:
    """Return the function of the batch's endpoint."""
    if not isinstance(function, Mapping):
        return function
    name = str(frame.values.get("endpoint"))
    if name not in function:
        raise LookupError(f"serve() has no function for the endpoint '{name}', only for {', '.join(sorted(function))}")
    return function[name]


def _decode(body: Body) -> Any:
    return json.loads(body.data) if body.type == JSON else body.data


def _encode(result: Any) -> Body:
    if isinstance(result, Exception):
        return Body(_message(result).encode(), "text/plain", _code(result))
    if isinstance(result, bytes | bytearray | memoryview):
        return Body(bytes(result), BYTES)
    try:
        return Body(json.dumps(result, allow_nan=False).encode(), JSON)
    except (TypeError, ValueError) as error:
        return Body(f"the result is not JSON: {error}"[:_MAX_MESSAGE].encode(), "text/plain", "wrong_result")


def _limited(body: Body, frame: Frame) -> Body:
    """Return the body, or the error of a result that the control plane would not take."""
    limit = frame.values.get("max_result_bytes")
    if limit is None or len(body.data) <= limit:
        return body
    message = f"the result has {len(body.data)} bytes, more than {limit >> 20} MiB (GPUSCHED_TASK_MAX_MB)"
    return Body(message.encode(), "text/plain", "result_too_large")


def _code(error: Exception) -> str:
    """Return `out_of_memory` for MemoryError and for the errors of the usual GPU frameworks, which have no common
    class."""
    is_out = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__ or "out of memory" in str(error)
    return "out_of_memory" if is_out else "error"


def _message(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:_MAX_MESSAGE]
