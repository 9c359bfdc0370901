"""Translate the common `#SBATCH` options of Slurm into fields of a job, and explain why the others are ignored."""

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
_SUPPORTED = {"job-name", "gres", "gpus", "gpus-per-node", "gpus-per-task", "nodes", "ntasks", "ntasks-per-node",
               "cpus-per-task", "mem", "mem-per-cpu", "mem-per-gpu", "time", "array", "dependency", "chdir", "requeue",
               "no-requeue", "constraint"}  # fmt: skip
_OUTPUT_STORED = "the server stores the output: gpusched logs"
_IGNORED = {
    "output": _OUTPUT_STORED,
    "error": _OUTPUT_STORED,
    "open-mode": _OUTPUT_STORED,
    "partition": "there are no partitions; see --gpu-model and --node-selector",
    "constraint": "only features combined with & or a comma are supported, like a&b; see --affinity",
    "nodelist": "see --node-selector and --affinity",
    "exclude": "see --node-selector and --affinity",
    "account": "a job belongs to a tenant: --tenant",
    "qos": "see --priority",
    "nice": "see --priority",
    "priority": "see --priority",
    "export": "only --env is passed to the job",
    "begin": "see --not-before",
    "hold": "see gpusched hold",
    "exclusive": "a GPU is exclusive unless the job sets --gpu-sharing shared",
    "mail-type": "no mail is sent",
    "mail-user": "no mail is sent",
    "signal": "a job gets SIGTERM, and has --grace-seconds to end",
}
_MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")
_NO_MEMORY = {
    **dict.fromkeys(_MEMORY, "give the amount of memory"),
    "mem-per-gpu": "no #SBATCH line names GPUs, or the amount is 0; see --memory-mb",
}
_MIB = {"": 1.0, "K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1048576.0}
# Not `after`: it waits for the start of a job, and a job here can wait only for an end.
_WHEN = {"afterany": "after_any", "afterok": "after_ok", "afternotok": "after_fail"}


@dataclass(frozen=True, slots=True)
class Option:
    name: str
    value: str
    location: str

    def __str__(self) -> str:
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


def translated(lines: Iterable[Line]) -> tuple[dict[str, Any], list[str]]:
    """Return the fields of a job in the lines, and a sentence for each ignored option. Slurm counts memory and `gres`
    per node and cores per task; here all are totals. Raises Invalid for an invalid value."""
    options = [option for line in lines for option in _options(line)]
    ignored = [
        f"{option.location}: {option} is ignored: {_IGNORED.get(option.name, 'it is not supported')}"
        for option in options
        if not _is_supported(option)
    ]
    options_by_name = {option.name: option for option in options if _is_supported(option)}
    fields = {**_plain(options_by_name), **_sizes(options_by_name)}
    if fields.get("memory_mb") == 0:
        del fields["memory_mb"]
        given = [options_by_name[name] for name in _MEMORY if name in options_by_name]
        ignored += [f"{option.location}: {option} is ignored: {_NO_MEMORY[option.name]}" for option in given]
    if "ranks" in fields:
        ignored.append(f"each of the {fields['ranks']} ranks runs the whole script; there is no srun")
    return fields, ignored


def _is_supported(option: Option) -> bool:
    """Return True for a supported option. Of --constraint, only forms that require all named labels are."""
    return option.name in _SUPPORTED and (option.name != "constraint" or all(map(is_label, _features(option))))


def _options(line: Line) -> Iterator[Option]:
    remaining = list(line.words)
    while remaining:
        word = remaining.pop(0)
        if word.startswith("--"):
            name, has_value, value = word[2:].partition("=")
        elif word.startswith("-") and len(word) > 1:
            name, value = _SHORT.get(word[1], word[1]), word[2:].removeprefix("=")
            has_value = value
        else:
            name, value, has_value = word, "", "none"
        if not has_value and name not in _WITHOUT_VALUE and remaining and not remaining[0].startswith("-"):
            value = remaining.pop(0)
        yield Option(name, value, line.location)


def _plain(options: dict[str, Option]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if name := options.get("job-name"):
        fields["name"] = name.value
    if directory := options.get("chdir"):
        fields["workdir"] = directory.value
    if (limit := options.get("time")) and (minutes := _minutes(limit)):
        fields["max_runtime_minutes"] = minutes
    for word, value in (("requeue", True), ("no-requeue", False)):
        if word in options:
            fields["requeue"] = value
    if array := options.get("array"):
        fields["array"] = _array(array)
    if constraint := options.get("constraint"):
        required = [{"key": word, "operator": LabelOperator.EXISTS.value} for word in _features(constraint)]
        fields["node_affinity"] = {"required": required}
    if dependency := options.get("dependency"):
        fields["depends_on"] = _dependency(dependency)
    return fields


def _sizes(options: dict[str, Option]) -> dict[str, Any]:
    nodes = _number(options.get("nodes"), 1)
    tasks = _number(options.get("ntasks"), 0) or _number(options.get("ntasks-per-node"), 1) * nodes
    cores = _number(options.get("cpus-per-task"), 1) * tasks
    fields: dict[str, Any] = {}
    gpus = 0
    for name, times in (("gres", nodes), ("gpus-per-task", tasks), ("gpus-per-node", nodes), ("gpus", 1)):
        if option := options.get(name):
            count, model = _gpus(option)
            fields["gpu_count"] = gpus = count * times
            if model:
                fields["gpu_model"] = model
    if tasks > 1:
        fields |= {"gang_scheduling": True, "ranks": tasks}
    if "cpus-per-task" in options or tasks > 1:
        fields["cpu_cores"] = float(cores)
    for name, times in zip(_MEMORY, (nodes, cores, gpus), strict=True):
        if option := options.get(name):
            # None of something is no amount: another option may have set one.
            fields["memory_mb"] = round(_mib(option) * times) or fields.get("memory_mb", 0)
    return fields


def _number(option: Option | None, default: int) -> int:
    """Return the option's number; of a range like 2-4 the lower."""
    if option is None:
        return default
    match = re.fullmatch(r"(\d+)(-\d+)?", option.value)
    if not match or int(match[1]) < 1:
        raise _no(option, "a number of at least 1")
    return int(match[1])


def _gpus(option: Option) -> tuple[int, str]:
    """Parse 4, a100:4, gpu:4 or gpu:a100:4 into count and model."""
    text = option.value.removeprefix("gres/")
    if option.name == "gres":
        kind, _, text = text.partition(":")
        if kind != "gpu" or "," in text:
            raise _no(option, "like gpu:4 or gpu:a100:4; nothing else is supported")
    if "," in text:
        raise _no(
            option, "a number of GPUs, or one model and a number like a100:4: all GPUs of a job have the same model"
        )
    model, _, count = text.partition("(")[0].rpartition(":")
    if not count.isdecimal() and not model:
        model, count = count, "1"
    if not count.isdecimal():
        raise _no(option, "a number of GPUs, or a model and a number like a100:4")
    return int(count), model


def _mib(option: Option) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", option.value.upper())
    if not match:
        raise _no(option, "a size like 16G")
    return float(match[1]) * _MIB[match[2]]


def _minutes(option: Option) -> float | None:
    """Parse minutes, minutes:seconds, hours:minutes:seconds, days-hours[:minutes[:seconds]]; None: no limit."""
    if option.value.upper() in ("UNLIMITED", "INFINITE", "0"):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", option.value)
    if not match:
        raise _no(option, "a time like 30, 12:00:00 or 1-12")
    days, first, second, third = (int(part or 0) for part in match.groups())
    if match[1] is not None:
        return days * 1440 + first * 60 + second + third / 60
    return first * 60 + second + third / 60 if match[4] is not None else first + second / 60


def _array(option: Option) -> dict[str, int]:
    match = re.fullmatch(r"0-(\d+)(?:%(\d+))?", option.value)
    if not match or int(match[2] or 1) < 1:
        # Shifting the numbers silently would give each element the work of another.
        raise _no(
            option, "like 0-99 or 0-99%10: elements are numbered from 0, without gaps, and at least one runs at once"
        )
    array = {"count": int(match[1]) + 1}
    return {**array, "max_parallel": int(match[2])} if match[2] else array


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


def _no(option: Option, expected: str) -> Invalid:
    return Invalid(f"{option.location}: {option} is not {expected}")
