"""The flags that describe a job, shared by `submit` and `run`. Each is named after its field."""

import codecs
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from gpusched.cli.flags.directives import OURS, SLURMS, Line, lines_of
from gpusched.cli.flags.sbatch import translated
from gpusched.cli.terminal import messages
from gpusched.client.errors import Invalid
from gpusched.protocol.affinity import expression_of, preference_of, toleration_of
from gpusched.protocol.arrays import array_of
from gpusched.protocol.job_request import AUTO

# Typer exports only this exception of its parser.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def _flag(field: str, kind: Any, help_text: str, *names: str, metavar: str | None = None) -> inspect.Parameter:
    declared = names or (f"--{field.replace('_', '-')}",)
    option = typer.Option(*declared, help=help_text, metavar=metavar, show_default=False)
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


_COMMAND = inspect.Parameter(
    "command",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[list[str] | None, typer.Argument(metavar="COMMAND...", show_default=False)],
)

FLAGS: tuple[inspect.Parameter, ...] = (
    _COMMAND,
    _flag("file", Path, "A job or a list of jobs, YAML or JSON (- for stdin); flags override it.", "--file", "-f"),
    _flag("script", Path, "A script to run instead of a command; its first line names the interpreter.", "--script"),
    _flag("tenant", str, "The job's tenant; required only if you belong to several.", "--tenant", "-t"),
    _flag("name", str, "A name for the job.", "--name", "-n"),
    _flag("gpu_count", int, "GPUs in total.", "--gpus", "-g"),
    _flag("gpu_memory_mb", str, "Minimum memory of each GPU, in MiB; on a shared GPU, the job's part. auto: as earlier"
          " runs used.", metavar="N|auto"),
    _flag("gpu_model", str, "Accepted models, such as 'A100|H100'."),
    _flag("gpu_sharing", str, "exclusive or shared.", metavar="MODE"),
    _flag("cpu_cores", float, "CPU cores in total.", "--cpu-cores", "-c"),
    _flag("memory_mb", int, "Memory in total, in MiB.", "--memory-mb", "-m"),
    _flag("environment", list[str], "A variable of the job; NAME copies yours.", "--env", "-e", metavar="NAME=VALUE"),
    _flag("secrets", list[str], "A secret of the tenant, passed to the job as a file.", "--secret", metavar="NAME"),
    _flag("workdir", str, "Directory on the node to start in.", "--workdir", "-w"),
    _flag("image", str, "Run in a container of this image.", "--image", metavar="NAME"),
    _flag("runtime", str, "auto, process, podman, docker or apptainer.", "--runtime", metavar="RUNTIME"),
    _flag("mounts", list[str], "A directory of the node for the container.", "--mount", metavar="/DIR:/DIR[:ro]"),
    _flag("priority", int, "100-499 low, 500-999 normal, 1000-1999 high, 2000+ urgent.", "--priority", "-p"),
    _flag("max_runtime_minutes", float, "Stop the job after this time."),
    _flag("predicted_runtime_minutes", float, "Expected run time; orders the queue under the policy shortest."),
    _flag("gang_scheduling", bool, "Let the job span nodes; all ranks start together.", "--gang/--no-gang"),
    _flag("ranks", int, "Processes of a gang."),
    _flag("workload_class", str, "online or batch.", metavar="CLASS"),
    _flag("preemptible", bool, "Whether it can be preempted.", "--preemptible/--not-preemptible"),
    _flag("requeue", bool, "Requeue it when a node fails or it is preempted.", "--requeue/--no-requeue"),
    _flag("max_retries", int, "Number of retries after a failure."),
    _flag("retry_on", list[str], "Retry only this failure class, such as cuda_oom; repeatable.", metavar="CLASS"),
    _flag("grace_seconds", int, "Time between SIGTERM and SIGKILL."),
    _flag("not_before", str, "Do not start before this time, such as 2030-01-31T08:00:00Z.", metavar="TIME"),
    _flag("array", str, "An array of COUNT elements, numbered from 0; at most PARALLEL run at once.", "--array",
          metavar="COUNT[%PARALLEL]"),
    _flag("depends_on", list[str], "Start only after this job completed; after_any:ID: ended, after_fail:ID: failed.",
          "--after", metavar="[KIND:]ID"),
    _flag("labels", list[str], "A label for your own use.", "--label", metavar="NAME=VALUE"),
    _flag("node_selector", list[str], "Only nodes with this label.", "--node-selector", metavar="NAME=VALUE"),
    _flag("affinity", list[str], "Only nodes that match: 'NAME in (A, B)', 'NAME notin (A)', NAME=A, NAME, !NAME.",
          "--affinity", metavar="EXPRESSION"),
    _flag("prefer", list[str], "Prefer nodes that match; WEIGHT is 1 to 100.", "--prefer",
          metavar="[WEIGHT:]EXPRESSION"),
    _flag("tolerations", list[str], "A taint of nodes that the job accepts; NAME alone accepts any value, * any taint.",
          "--toleration", metavar="NAME[=VALUE][:EFFECT]"),
    _flag("anti_affinity", str, "Your tenant's jobs with the same word never share a node.", metavar="WORD"),
    _flag("reservation", int, "Start only in this reservation.", metavar="ID"),
    _flag("topology", str, "any, nvlink, numa, prefer_nvlink or prefer_numa: how close its GPUs are.", metavar="HOW"),
)  # fmt: skip


def with_job_flags(function: Callable[..., None]) -> Callable[..., None]:
    """Return the command `function` with the flags above; they fill its `jobs` (the fields of each)."""
    own_parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "jobs"]

    def command(**options: Any) -> None:
        flags = {flag.name: options.pop(flag.name) for flag in FLAGS}
        function(jobs=requested(flags), **options)

    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own_parameters), *FLAGS]
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def requested(flags: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the fields of a JobRequest for each job. Flags override the lines of a script, which override a file.
    Flags apply to all jobs of a file."""
    # Some versions of typer return empty lists for absent repeated flags.
    values = {name: value for name, value in flags.items() if value not in (None, [])}
    file = values.pop("file", None)
    return [_job_fields(fields, dict(values)) for fields in (_read_jobs(file) if file is not None else [{}])]


def _job_fields(fields: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    program = list(flags.pop("command", []))
    script: Path | None = flags.pop("script", None)
    # As for sbatch, - alone is a script on stdin: no program has this name.
    if script is None and program and not fields and (program[0] == "-" or _has_directives(program[0])):
        script = Path(program.pop(0))
    if script is not None:
        fields["script"] = _read(script)
        _apply_directives(fields, lines_of(fields["script"], script.name))
    _override(fields, flags)
    if program:
        has_program = fields.get("command") or fields.get("script")
        fields["args" if has_program else "command"] = program
    return fields


def _has_directives(word: str) -> bool:
    """Return True if this word is a local script with directives: then its text is sent, or refused if it is not
    UTF-8."""
    try:
        with open(word, "rb") as file:
            if not file.read(5).removeprefix(codecs.BOM_UTF8).startswith(b"#!"):
                return False
        return bool(lines_of(Path(word).read_text("utf-8-sig", "replace"), word))
    except OSError:
        return False


def _apply_directives(fields: dict[str, Any], lines: list[Line]) -> None:
    slurms, ignored = translated([line for line in lines if line.mark == SLURMS])
    for sentence in ignored:
        messages.note(sentence)
    fields.update(slurms)
    for line in lines:
        if line.mark == OURS:
            flags = _flags_of(line)
            try:
                _override(fields, flags)
            except Invalid as error:
                raise Invalid(f"{line.location}: {error}", next_step=error.next_step) from error


def _flags_of(line: Line) -> dict[str, Any]:
    """Return the fields that a directive sets, parsed like the command line. Raises Invalid."""
    from typer.main import get_command

    command = typer.Typer(add_completion=False)

    def collect(**values: Any) -> dict[str, Any]:
        return {name: value for name, value in values.items() if value not in (None, [])}

    collect.__dict__["__signature__"] = inspect.Signature(list(FLAGS))
    collect.__annotations__ = {flag.name: flag.annotation for flag in FLAGS}
    command.command(add_help_option=False)(collect)
    try:
        values: dict[str, Any] = get_command(command).main(list(line.words), OURS, standalone_mode=False)
    except _UsageError as error:
        raise Invalid(f"{line.location}: {error.format_message()}") from error  # type: ignore[attr-defined]
    if wrong := {"command", "file", "script"} & set(values):
        raise Invalid(f"{line.location}: a script cannot set its {wrong.pop()}")
    return values


def _override(fields: dict[str, Any], flags: Mapping[str, Any]) -> None:
    """Set the flags' fields; variables, secrets, dependencies and labels are added to existing ones."""
    changes = dict(flags)
    if "environment" in changes:
        inherited = {name: os.environ.get(name) for name in changes["environment"] if "=" not in name}
        changes["environment"] = {
            **_mapping(fields, "environment"),
            **_pairs("--env", changes["environment"], inherited),
        }
    if "secrets" in changes:
        changes["secrets"] = _secrets(fields.get("secrets", []), changes["secrets"])
    if "depends_on" in changes and isinstance(existing := fields.get("depends_on"), list):
        changes["depends_on"] = [*existing, *changes["depends_on"]]
    if "gpu_memory_mb" in changes:
        changes["gpu_memory_mb"] = _gpu_memory(changes["gpu_memory_mb"])
    if "array" in changes:
        changes["array"] = _array(changes["array"])
    for field, flag in (("labels", "--label"), ("node_selector", "--node-selector")):
        if field in changes:
            changes[field] = {**_mapping(fields, field), **_pairs(flag, changes[field], {})}
    if "tolerations" in changes:
        existing = fields.get("tolerations")
        changes["tolerations"] = [
            *(existing if isinstance(existing, list) else ()),
            *_read_all(toleration_of, changes["tolerations"]),
        ]
    required, preferred = changes.pop("affinity", []), changes.pop("prefer", [])
    if required or preferred:
        changes["node_affinity"] = _affinity(_mapping(fields, "node_affinity"), required, preferred)
    fields.update(changes)


def _affinity(existing: dict[str, Any], required: list[str], preferred: list[str]) -> dict[str, Any]:
    """Add the expressions of flags to those of a file."""
    more = {"required": _read_all(expression_of, required), "preferred": _read_all(preference_of, preferred)}
    return {
        **existing,
        **{name: [*existing.get(name, []), *expressions] for name, expressions in more.items() if expressions},
    }


def _read_all(read: Callable[[str], Any], texts: list[str]) -> list[Any]:
    try:
        return [msgspec.to_builtins(read(text)) for text in texts]
    except ValueError as error:
        raise Invalid(str(error)) from error


def _array(text: str) -> dict[str, int]:
    try:
        array = array_of(text)
    except ValueError as error:
        raise Invalid(f"--array {text} {error}") from error
    return {"count": array.count, **({} if array.max_parallel is None else {"max_parallel": array.max_parallel})}


def _gpu_memory(text: str) -> int | str:
    if text != AUTO and not (text.isascii() and text.isdigit()):
        raise Invalid(f"--gpu-memory-mb {text} is neither a whole number of MiB nor {AUTO}")
    return text if text == AUTO else int(text)


def _mapping(fields: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = fields.get(field)
    return dict(value) if isinstance(value, Mapping) else {}


def _pairs(flag: str, texts: list[str], inherited: Mapping[str, str | None]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        content = value if separator else inherited.get(text)
        if not name or content is None:
            raise Invalid(f"{flag} {text}: write NAME=VALUE, or the NAME of a variable that is set")
        pairs[name] = content
    return pairs


def _secrets(existing: Any, names: list[str]) -> Any:
    """Return the secrets of a file and of flags; the server refuses a value that is not a list. Names only: other users
    of this machine can read a command line."""
    from gpusched.protocol.job_request import SECRET_NAME

    if not all(SECRET_NAME.match(name) for name in names):
        raise Invalid(
            "--secret takes the name of a secret of the tenant, never the secret",
            next_step="set it first: gpusched secret set NAME --file FILE",
        )
    return list(dict.fromkeys([*existing, *names])) if isinstance(existing, list) else existing


def _read_jobs(file: Path) -> list[dict[str, Any]]:
    import yaml

    class Reader(yaml.SafeLoader):
        """Load a bare time as text: a request has times only as text."""

        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
            for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    # JSON is YAML, so one reader serves both.
    try:
        content = yaml.load(_read(file), Reader)  # noqa: S506  # nosec B506 - it is a SafeLoader
    except yaml.YAMLError as error:
        raise Invalid(f"{file} is neither YAML nor JSON: {error}") from error
    jobs = content if isinstance(content, list) else [content]
    if not jobs or not all(isinstance(job, dict) and all(isinstance(name, str) for name in job) for job in jobs):
        raise Invalid(f"{file} must contain one job, as fields and values, or a list of jobs")
    return jobs


def _read(file: Path) -> str:
    try:
        # Editors on Windows begin a file with a byte order mark, which no interpreter and no parser expects.
        return sys.stdin.read().removeprefix("\ufeff") if str(file) == "-" else file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
