"""What the common `#SBATCH` options of Slurm mean for a job here, and why the others are ignored."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gpusched.cli.flags.directives import Line
from gpusched.client.errors import Invalid
from gpusched.protocol.affinity import LabelOperator
from gpusched.protocol.labels import is_label

_SHORT = {
    "J": "job-name", "G": "gpus", "N": "nodes", "n": "ntasks", "c": "cpus-per-task", "t": "time", "a": "array",
    "d": "dependency", "D": "chdir", "o": "output", "e": "error", "i": "input", "p": "partition", "A": "account",
    "q": "qos", "C": "constraint", "w": "nodelist", "x": "exclude", "H": "hold", "b": "begin", "M": "clusters",
    "L": "licenses", "S": "core-spec", "s": "oversubscribe", "k": "no-kill", "v": "verbose", "W": "wait", "Q": "quiet",
}  # fmt: skip
_WITHOUT_VALUE = {"exclusive", "hold", "requeue", "no-requeue", "oversubscribe", "no-kill", "verbose", "wait", "quiet",
                  "contiguous", "overcommit", "parsable", "spread-job", "reboot", "get-user-env"}  # fmt: skip
_UNDERSTOOD = {"job-name", "gres", "gpus", "gpus-per-node", "gpus-per-task", "nodes", "ntasks", "ntasks-per-node",
               "cpus-per-task", "mem", "mem-per-cpu", "mem-per-gpu", "time", "array", "dependency", "chdir", "requeue",
               "no-requeue", "constraint"}  # fmt: skip
_KEPT = "the server keeps the output: gpusched logs"
_IGNORED = {
    "output": _KEPT,
    "error": _KEPT,
    "open-mode": _KEPT,
    "partition": "there are no partitions; see --gpu-model and --node-selector",
    "constraint": "only features that a node must all have are understood, like a&b; see --affinity",
    "nodelist": "see --node-selector and --affinity",
    "exclude": "see --node-selector and --affinity",
    "account": "a job counts for a tenant: --tenant",
    "qos": "see --priority",
    "nice": "see --priority",
    "priority": "see --priority",
    "export": "only --env is passed on",
    "begin": "see --not-before",
    "hold": "see gpusched hold",
    "exclusive": "a GPU is a job's own unless it asks for --gpu-sharing shared",
    "mail-type": "no mail is sent",
    "mail-user": "no mail is sent",
    "signal": "a job is told by SIGTERM, and has --grace-seconds",
}
_MIB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1048576.0}
_WHEN = {"after": "after_any", "afterany": "after_any", "afterok": "after_ok", "afternotok": "after_fail"}


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    value: str
    where: str

    def __str__(self) -> str:
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


def translated(lines: Iterable[Line]) -> tuple[dict[str, Any], list[str]]:
    """The fields of a job that the lines ask for, and a sentence for each option that is ignored. Slurm counts memory
    and `gres` per node and cores per task; here all of them are totals. Raises Invalid for a value that is none."""
    options = [option for line in lines for option in _options(line)]
    ignored = [
        f"{option.where}: {option} is ignored: {_IGNORED.get(option.name, 'it is not known here')}"
        for option in options
        if not _is_understood(option)
    ]
    asked = {option.name: option for option in options if _is_understood(option)}
    fields = {**_plain(asked), **_sizes(asked)}
    if (mem := asked.get("mem")) and fields.get("memory_mb") == 0:
        del fields["memory_mb"]
        ignored.append(f"{mem.where}: {mem} is ignored: name how much memory it needs")
    if "ranks" in fields:
        ignored.append(f"each of the {fields['ranks']} ranks runs the whole script; there is no srun")
    return fields, ignored


def _is_understood(option: Option) -> bool:
    """Of --constraint only the forms that name labels which a node must all have."""
    return option.name in _UNDERSTOOD and (option.name != "constraint" or all(map(is_label, _features(option))))


def _options(line: Line) -> Iterator[Option]:
    words = list(line.words)
    while words:
        word = words.pop(0)
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, value = _SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
            has_value = value
        else:
            name, value, has_value = word, "", "none"
        if not has_value and name not in _WITHOUT_VALUE and words and not words[0].startswith("-"):
            value = words.pop(0)
        yield Option(name, value, line.where)


def _plain(asked: dict[str, Option]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if name := asked.get("job-name"):
        fields["name"] = name.value
    if place := asked.get("chdir"):
        fields["workdir"] = place.value
    if (limit := asked.get("time")) and (minutes := _minutes(limit)):
        fields["max_runtime_minutes"] = minutes
    for word, is_wanted in (("requeue", True), ("no-requeue", False)):
        if word in asked:
            fields["requeue"] = is_wanted
    if array := asked.get("array"):
        fields["array"] = _array(array)
    if constraint := asked.get("constraint"):
        required = [{"key": word, "operator": LabelOperator.EXISTS.value} for word in _features(constraint)]
        fields["node_affinity"] = {"required": required}
    if dependency := asked.get("dependency"):
        fields["depends_on"] = _dependency(dependency)
    return fields


def _sizes(asked: dict[str, Option]) -> dict[str, Any]:
    nodes = _number(asked.get("nodes"), 1)
    tasks = _number(asked.get("ntasks"), 0) or _number(asked.get("ntasks-per-node"), 1) * nodes
    cores = _number(asked.get("cpus-per-task"), 1) * tasks
    fields: dict[str, Any] = {}
    gpus = 0
    for name, times in (("gres", nodes), ("gpus-per-task", tasks), ("gpus-per-node", nodes), ("gpus", 1)):
        if option := asked.get(name):
            count, model = _gpus(option)
            fields["gpu_count"] = gpus = count * times
            if model:
                fields["gpu_model"] = model
    if tasks > 1:
        fields |= {"gang_scheduling": True, "ranks": tasks}
    if "cpus-per-task" in asked or tasks > 1:
        fields["cpu_cores"] = float(cores)
    for name, times in (("mem", nodes), ("mem-per-cpu", cores), ("mem-per-gpu", gpus)):
        if option := asked.get(name):
            fields["memory_mb"] = round(_mib(option) * times)
    return fields


def _number(option: Option | None, default: int) -> int:
    """Of a range like 2-4 the lesser."""
    if option is None:
        return default
    found = re.fullmatch(r"(\d+)(-\d+)?", option.value)
    if not found or int(found[1]) < 1:
        raise _no(option, "a number of at least 1")
    return int(found[1])


def _gpus(option: Option) -> tuple[int, str]:
    """4, a100:4, gpu:4 or gpu:a100:4 as count and model."""
    text = option.value.removeprefix("gres/")
    if option.name == "gres":
        kind, _, text = text.partition(":")
        if kind != "gpu" or "," in text:
            raise _no(option, "like gpu:4 or gpu:a100:4; nothing else is known")
    if "," in text:
        raise _no(option, "a number of GPUs, or one model and a number like a100:4: those of a job are asked for alike")
    model, _, count = text.partition("(")[0].rpartition(":")
    if not count.isdecimal() and not model:
        model, count = count, "1"
    if not count.isdecimal():
        raise _no(option, "a number of GPUs, or a model and a number like a100:4")
    return int(count), model


def _mib(option: Option) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", option.value.upper())
    if not found:
        raise _no(option, "a size like 16G")
    return float(found[1]) * _MIB[found[2]]


def _minutes(option: Option) -> float | None:
    """minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]; None: no limit."""
    if option.value.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    found = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", option.value)
    if not found:
        raise _no(option, "a time like 30, 12:00:00 or 1-12")
    days, first, second, third = (int(part or 0) for part in found.groups())
    if found[1] is not None:
        return days * 1440 + first * 60 + second + third / 60
    return first * 60 + second + third / 60 if found[4] is not None else first + second / 60


def _array(option: Option) -> dict[str, int]:
    found = re.fullmatch(r"0-(\d+)(?:%(\d+))?", option.value)
    if not found or int(found[2] or 1) < 1:
        # To shift the numbers silently would give each element the work of another.
        raise _no(option, "like 0-99 or 0-99%10: elements are numbered from 0, without gaps, one or more at once")
    array = {"count": int(found[1]) + 1}
    return {**array, "max_parallel": int(found[2])} if found[2] else array


def _dependency(option: Option) -> list[str]:
    depends = []
    for part in option.value.split(","):
        kind, *ids = part.split(":")
        if kind not in _WHEN or not ids or not all(job.isdecimal() for job in ids):
            raise _no(option, "like afterok:41:42, afterany:41 or afternotok:41")
        depends += [f"{_WHEN[kind]}:{job}" for job in ids]
    return depends


def _features(option: Option) -> list[str]:
    """Read `a`, `a&b` or `a,b`: a node must have a label of each name."""
    return re.split("[&,]", option.value)


def _no(option: Option, wanted: str) -> Invalid:
    return Invalid(f"{option.where}: {option} is not {wanted}")
