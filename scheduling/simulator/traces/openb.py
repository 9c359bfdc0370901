"""Read the node and pod lists of the openb trace (Alibaba's, published with FGD) as nodes and requests."""

import csv
import gzip
from collections.abc import Iterator, Mapping
from pathlib import Path

from scheduling.engine.model import Device, Node, Request
from scheduling.simulator.errors import InputError, bad_line

# A whole device in thousandths: `gpu_milli` of the pod list is memory of a device in our terms.
DEVICE_MB = 1000


def read_nodes(path: Path) -> tuple[Node, ...]:
    """Return the nodes, ids in the order of the file. Raises InputError, OSError.

    Columns: sn, cpu_milli, memory_mib, gpu, model.
    """
    nodes: list[Node] = []
    devices = 0
    for line, row in _rows(path, ("sn", "cpu_milli", "memory_mib", "gpu", "model")):
        cpu_milli, memory_mb, gpus = (
            _integer(path, line, row, column) for column in ("cpu_milli", "memory_mib", "gpu")
        )
        node_devices = tuple(Device(devices + number, row["model"], DEVICE_MB) for number in range(1, gpus + 1))
        devices += gpus
        nodes.append(Node(len(nodes) + 1, row["sn"], cpu_milli, memory_mb, cpu_milli, memory_mb, node_devices))
    if not devices:
        raise InputError(f"{path} lists no node with a GPU.")
    return tuple(nodes)


def read_requests(path: Path) -> tuple[Request, ...]:
    """Return the requests; equal ones are one object. Raises InputError, OSError. Columns: cpu_milli, memory_mib,
    num_gpu, gpu_milli (of each GPU; 1000: whole) and, optionally, gpu_spec (models, separated by |)."""
    distinct: dict[Request, Request] = {}
    requests = []
    for line, row in _rows(path, ("cpu_milli", "memory_mib", "num_gpu", "gpu_milli")):
        cpu_milli, memory_mb, gpus = (
            _integer(path, line, row, column) for column in ("cpu_milli", "memory_mib", "num_gpu")
        )
        part = _integer(path, line, row, "gpu_milli") if gpus else DEVICE_MB
        if part > DEVICE_MB or (gpus and not part):
            raise bad_line(path, line, "gpu_milli", f"{part} is not from 1 to {DEVICE_MB}")
        shared = part < DEVICE_MB
        models = tuple(word for word in (row.get("gpu_spec") or "").split("|") if word)
        request = Request(gpus, part if shared else None, models, shared, cpu_milli, memory_mb)
        requests.append(distinct.setdefault(request, request))
    if not any(request.gpu_count for request in requests):
        raise InputError(f"{path} lists no request for a GPU.")
    return tuple(requests)


def gpus_of(request: Request) -> float:
    """Return the GPUs that a request of the trace asks for, parts of one as parts."""
    return request.gpu_count * (request.gpu_memory_mb or DEVICE_MB) / DEVICE_MB


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield (line, row), from plain or gzipped CSV with a header."""
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        rows = csv.DictReader(file)
        try:
            missing = [column for column in columns if column not in (rows.fieldnames or ())]
            if missing:
                raise bad_line(path, 1, missing[0], "the header has no such column")
            for row in rows:
                yield rows.line_num, row
        except (gzip.BadGzipFile, UnicodeDecodeError, csv.Error, EOFError) as problem:
            raise InputError(f"{path}, line {rows.line_num + 1}: it is no CSV file ({problem}).") from problem


def _integer(path: Path, line: int, row: Mapping[str, str], column: str) -> int:
    text = row[column] or ""
    if not (text.isascii() and text.isdigit()):
        raise bad_line(path, line, column, f"{text!r} is not a whole number")
    return int(text)
