"""The flags that describe a job, shared by `submit` and `run`: each is named after the field that it sets."""

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

# Typer exports only this one of what its parser raises.
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
    annotation=Annotated[list[str] | None, typer.Argument(metavar="COMMAND", show_default=False)],
)

FLAGS: tuple[inspect.Parameter, ...] = (
    _COMMAND,
    _flag("file", Path, "A job or a list of jobs, YAML or JSON (- for stdin); other flags win.", "--file", "-f"),
    _flag("script", Path, "A script to run instead of a command; its first line names the interpreter.", "--script"),
    _flag("tenant", str, "Who it counts for; needed only if you belong to several.", "--tenant", "-t"),
    _flag("name", str, "A name to find it by.", "--name", "-n"),
    _flag("gpu_count", int, "GPUs in total.", "--gpus", "-g"),
    _flag("gpu_memory_mb", int, "Memory that each GPU must have, in MiB; of a shared one, what the job takes."),
    _flag("gpu_model", str, "Models that will do, such as 'A100|H100'."),
    _flag("gpu_sharing", str, "exclusive or shared.", metavar="MODE"),
    _flag("cpu_cores", float, "CPU cores in total.", "--cpu-cores", "-c"),
    _flag("memory_mb", int, "Memory in total, in MiB.", "--memory-mb", "-m"),
    _flag("environment", list[str], "A variable of the job; NAME takes yours.", "--env", "-e", metavar="NAME=VALUE"),
    _flag("secrets", list[str], "A secret of the tenant that the job gets as a file.", "--secret", metavar="NAME"),
    _flag("workdir", str, "Directory on the node to start in.", "--workdir", "-w"),
    _flag("image", str, "Run in a container of this image.", "--image", metavar="NAME"),
    _flag("runtime", str, "auto, process, podman, docker or apptainer.", "--runtime", metavar="RUNTIME"),
    _flag("mounts", list[str], "A directory of the node for the container.", "--mount", metavar="/DIR:/DIR[:ro]"),
    _flag("priority", int, "100-499 low, 500-999 normal, 1000-1999 high, 2000+ urgent.", "--priority", "-p"),
    _flag("max_runtime_minutes", float, "Stop it after this long."),
    _flag("predicted_runtime_minutes", float, "How long it will probably run; orders the queue under shortest."),
    _flag("gang_scheduling", bool, "Let it span nodes; all ranks start together.", "--gang/--no-gang"),
    _flag("ranks", int, "Processes of a gang."),
    _flag("workload_class", str, "online or batch.", metavar="CLASS"),
    _flag("preemptible", bool, "May be preempted.", "--preemptible/--not-preemptible"),
    _flag("requeue", bool, "Queue it again when a node fails or it is preempted.", "--requeue/--no-requeue"),
    _flag("max_retries", int, "Start it again this often when it fails."),
    _flag("retry_on", list[str], "Only when it ended like this, such as cuda_oom; repeatable.", metavar="CLASS"),
    _flag("grace_seconds", int, "Time between SIGTERM and SIGKILL."),
    _flag("not_before", str, "Do not start before this time, such as 2030-01-31T08:00:00Z.", metavar="TIME"),
    _flag("array", str, "So many elements, each told its number; at most so many at once.", "--array",
          metavar="COUNT[%PARALLEL]"),
    _flag("depends_on", list[str], "Only after this job completed; after_any:ID: ended, after_fail:ID: failed.",
          "--after", metavar="[KIND:]ID"),
    _flag("labels", list[str], "A label for your own use.", "--label", metavar="NAME=VALUE"),
    _flag("node_selector", list[str], "Only nodes with this label.", "--node-selector", metavar="NAME=VALUE"),
    _flag("affinity", list[str], "Only nodes that meet this: 'NAME in (A, B)', 'NAME notin (A)', NAME=A, NAME, !NAME.",
          "--affinity", metavar="EXPRESSION"),
    _flag("prefer", list[str], "Nodes that meet this where possible; WEIGHT is 1 to 100.", "--prefer",
          metavar="[WEIGHT:]EXPRESSION"),
    _flag("tolerations", list[str], "A taint of nodes that the job accepts; NAME alone takes any value, * any taint.",
          "--toleration", metavar="NAME[=VALUE][:EFFECT]"),
    _flag("anti_affinity", str, "Your tenant's jobs with the same word never share a node.", metavar="WORD"),
    _flag("topology", str, "any, nvlink, numa, prefer_nvlink or prefer_numa: how near its GPUs are.", metavar="HOW"),
)  # fmt: skip


def with_job_flags(function: Callable[..., None]) -> Callable[..., None]:
    """The command `function`, whose `jobs` (the fields of each) are filled from the flags above."""
    own = [p for p in inspect.signature(function).parameters.values() if p.name != "jobs"]

    def command(**given: Any) -> None:
        flags = {flag.name: given.pop(flag.name) for flag in FLAGS}
        function(jobs=requested(flags), **given)

    parameters = [*(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own), *FLAGS]
    command.__dict__["__signature__"] = inspect.Signature(parameters)
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command


def requested(flags: Mapping[str, Any]) -> list[dict[str, Any]]:
    """For each job the fields of a JobRequest that a file, the lines of a script and flags give; each wins over those
    before. Flags count for all jobs of a file."""
    # Of repeated flags that are absent, some versions of typer make empty lists.
    given = {name: value for name, value in flags.items() if value not in (None, [])}
    file = given.pop("file", None)
    return [_job_fields(fields, dict(given)) for fields in (_read_jobs(file) if file is not None else [{}])]


def _job_fields(fields: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    words = list(given.pop("command", []))
    script: Path | None = given.pop("script", None)
    if script is None and words and not fields and _speaks_for_itself(words[0]):
        script = Path(words.pop(0))
    if script is not None:
        fields["script"] = _read(script)
        _take_lines(fields, lines_of(fields["script"], script.name))
    _lay_over(fields, given)
    if words:
        has_program = fields.get("command") or fields.get("script")
        fields["args" if has_program else "command"] = words
    return fields


def _speaks_for_itself(word: str) -> bool:
    """Whether this first word is a script of this machine that says what it needs: then its text is sent."""
    try:
        with open(word, "rb") as file:
            if file.read(2) != b"#!":
                return False
        return bool(lines_of(Path(word).read_text("utf-8"), word))
    except (OSError, UnicodeDecodeError):
        return False


def _take_lines(fields: dict[str, Any], lines: list[Line]) -> None:
    slurms, ignored = translated([line for line in lines if line.mark == SLURMS])
    for sentence in ignored:
        messages.note(sentence)
    fields.update(slurms)
    for line in lines:
        if line.mark == OURS:
            given = _flags_of(line)
            try:
                _lay_over(fields, given)
            except Invalid as error:
                raise Invalid(f"{line.where}: {error}", next_step=error.next_step) from error


def _flags_of(line: Line) -> dict[str, Any]:
    """What a line with flags sets, read as the command line is. Raises Invalid."""
    from typer.main import get_command

    command = typer.Typer(add_completion=False)

    def take(**given: Any) -> dict[str, Any]:
        return {name: value for name, value in given.items() if value not in (None, [])}

    take.__dict__["__signature__"] = inspect.Signature(list(FLAGS))
    take.__annotations__ = {flag.name: flag.annotation for flag in FLAGS}
    command.command(add_help_option=False)(take)
    try:
        given: dict[str, Any] = get_command(command).main(list(line.words), OURS, standalone_mode=False)
    except _UsageError as error:
        raise Invalid(f"{line.where}: {error.format_message()}") from error  # type: ignore[attr-defined]
    if wrong := {"command", "file", "script"} & set(given):
        raise Invalid(f"{line.where}: a line of a script cannot give the {wrong.pop()}")
    return given


def _lay_over(fields: dict[str, Any], flags: Mapping[str, Any]) -> None:
    """Sets what the flags give; variables, secrets, dependencies and labels are added to those that are there."""
    given = dict(flags)
    if "environment" in given:
        own = {name: os.environ.get(name) for name in given["environment"] if "=" not in name}
        given["environment"] = {**_mapping(fields, "environment"), **_pairs("--env", given["environment"], own)}
    if "secrets" in given:
        given["secrets"] = _secrets(fields.get("secrets", []), given["secrets"])
    if "depends_on" in given and isinstance(known := fields.get("depends_on"), list):
        given["depends_on"] = [*known, *given["depends_on"]]
    if "array" in given:
        given["array"] = _array(given["array"])
    for field, flag in (("labels", "--label"), ("node_selector", "--node-selector")):
        if field in given:
            given[field] = {**_mapping(fields, field), **_pairs(flag, given[field], {})}
    if "tolerations" in given:
        known = fields.get("tolerations")
        given["tolerations"] = [
            *(known if isinstance(known, list) else ()),
            *_read_all(toleration_of, given["tolerations"]),
        ]
    required, preferred = given.pop("affinity", []), given.pop("prefer", [])
    if required or preferred:
        given["node_affinity"] = _affinity(_mapping(fields, "node_affinity"), required, preferred)
    fields.update(given)


def _affinity(known: dict[str, Any], required: list[str], preferred: list[str]) -> dict[str, Any]:
    """Add the expressions of flags to those of a file."""
    more = {"required": _read_all(expression_of, required), "preferred": _read_all(preference_of, preferred)}
    return {**known, **{name: [*known.get(name, []), *found] for name, found in more.items() if found}}


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


def _mapping(fields: Mapping[str, Any], field: str) -> dict[str, Any]:
    value = fields.get(field)
    return dict(value) if isinstance(value, Mapping) else {}


def _pairs(flag: str, texts: list[str], known: Mapping[str, str | None]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        found = value if separator else known.get(text)
        if not name or found is None:
            raise Invalid(f"{flag} {text}: write NAME=VALUE, or the NAME of a variable that is set")
        pairs[name] = found
    return pairs


def _secrets(known: Any, names: list[str]) -> Any:
    """Those of a file and these; what is no list there is left for the server to refuse. Names alone: what stands on a
    command line, everybody on this machine can read."""
    from gpusched.protocol.job_request import SECRET_NAME

    if not all(SECRET_NAME.match(name) for name in names):
        raise Invalid(
            "--secret takes the name of a secret of the tenant, never the secret",
            next_step="set it first: gpusched secret set NAME --file FILE",
        )
    return list(dict.fromkeys([*known, *names])) if isinstance(known, list) else known


def _read_jobs(file: Path) -> list[dict[str, Any]]:
    import yaml

    class Reader(yaml.SafeLoader):
        """Gives a bare time as the text that it is: a request has no times but as text."""

        yaml_implicit_resolvers = {
            first: [(tag, pattern) for tag, pattern in known if tag != "tag:yaml.org,2002:timestamp"]
            for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

    # JSON is YAML, so that one reader serves both.
    try:
        content = yaml.load(_read(file), Reader)  # noqa: S506  # nosec B506 - it is a SafeLoader
    except yaml.YAMLError as error:
        raise Invalid(f"{file} is neither YAML nor JSON: {error}") from error
    jobs = content if isinstance(content, list) else [content]
    if not jobs or not all(isinstance(job, dict) and all(isinstance(name, str) for name in job) for job in jobs):
        raise Invalid(f"{file} must hold one job, fields and their values, or a list of jobs")
    return jobs


def _read(file: Path) -> str:
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error
