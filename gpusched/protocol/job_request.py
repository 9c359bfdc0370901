"""The job request: its fields, its defaults, and every check that needs no database."""

import re
from typing import Literal

import msgspec

from gpusched.protocol import gpu_models
from gpusched.protocol.affinity import MAX_TOLERATIONS, NodeAffinity, Toleration, affinity_problems, toleration_problems
from gpusched.protocol.arrays import MAX_ELEMENTS, ArrayRequest
from gpusched.protocol.dependencies import MAX_DEPENDENCIES, Dependency, dependency_of
from gpusched.protocol.exits import RETRYABLE
from gpusched.protocol.labels import LABEL_RULE, MAX_LABELS, is_label, is_value
from gpusched.protocol.states import Sharing, Topology, WorkloadClass

VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*\Z")
# The agent reads it, too, and puts it into a command line.
IMAGE = re.compile(r"^(?:(?:docker|oras|library|shub)://)?[A-Za-z0-9/][A-Za-z0-9._:/@+-]{0,499}\Z")
_MOUNT = re.compile(r"^/[^:,\x00\n\"]*:/[^:,\x00\n\"]*(?::r[ow])?\Z")
RUNTIMES = ("auto", "process", "podman", "docker", "apptainer")
# They become names of files.
SECRET_NAME = re.compile(r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}\Z")
SECRET_NAME_RULE = "1 to 100 letters, digits, . _ -, and no dot first"
MAX_SECRETS = MAX_MOUNTS = 32  # of one job
AUTO = "auto"  # the value of `gpu_memory_mb` with which the server chooses the amount
RESERVED = ("GPUSCHED_", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD")


def runtime_label(runtime: str = "") -> str:
    """Return the label of nodes with a container runtime, or with the named one. Users cannot set a label with
    spaces."""
    return f"container runtime {runtime}".rstrip()


def user_labels(required: dict[str, str]) -> dict[str, str]:
    """Return the `node_selector` of a request from its `required_labels`."""
    return {name: value for name, value in required.items() if not name.startswith(runtime_label())}


class FieldError(msgspec.Struct, frozen=True):
    """A problem of one field, with the next step."""

    field: str
    code: str
    message: str


class JobRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`gpu_count`, `cpu_cores` and `memory_mb` are totals over all ranks; `gpu_memory_mb` is per GPU (MiB)."""

    tenant: str | None = None
    name: str = ""
    priority: int = 500
    gpu_count: int = 0
    gpu_memory_mb: int | Literal["auto"] | None = None
    gpu_model: str | None = None
    gpu_sharing: Sharing = Sharing.EXCLUSIVE
    cpu_cores: float = 1.0
    memory_mb: int = 0
    command: list[str] = []
    args: list[str] = []
    script: str | None = None
    workdir: str | None = None
    environment: dict[str, str] = {}
    secrets: list[str] = []
    gang_scheduling: bool = False
    ranks: int | None = None
    workload_class: WorkloadClass = WorkloadClass.BATCH
    max_runtime_minutes: float | None = None
    predicted_runtime_minutes: float | None = None
    preemptible: bool = True
    requeue: bool = True
    max_retries: int = 0
    retry_on: list[str] = []
    grace_seconds: int = 30
    not_before: str | None = None
    labels: dict[str, str] = {}
    node_selector: dict[str, str] = {}
    node_affinity: NodeAffinity | None = None
    tolerations: list[Toleration] = []
    anti_affinity: str | None = None
    topology: Topology = Topology.ANY
    reservation: int | None = None
    image: str | None = None
    runtime: str = "auto"
    mounts: list[str] = []
    # Jobs of the tenant by id (after_ok), or with the kind; in a bulk also by the `ref` that one of its jobs has.
    depends_on: list[int | str | Dependency] = []
    ref: str = ""
    array: ArrayRequest | None = None

    @property
    def dependencies(self) -> tuple[Dependency, ...]:
        """`depends_on`, each entry with its kind."""
        return tuple([dependency_of(entry) for entry in self.depends_on])

    @property
    def fixed_gpu_memory_mb(self) -> int | None:
        """`gpu_memory_mb`, or None while the server has yet to choose it (`auto`)."""
        return None if isinstance(self.gpu_memory_mb, str) else self.gpu_memory_mb

    @property
    def gpu_models(self) -> tuple[str, ...]:
        """`"A100|H100"` as a tuple; empty means any model."""
        return gpu_models.alternatives(self.gpu_model)

    @property
    def required_labels(self) -> dict[str, str]:
        """`node_selector`, and with an image the label of nodes that can run it."""
        if self.image is None:
            return self.node_selector
        # Only apptainer runs an image from a file.
        runtime = "apptainer" if self.image.startswith("/") else self.runtime
        return {**self.node_selector, runtime_label("" if runtime == "auto" else runtime): "yes"}


MAX_RUNTIME_MINUTES = 5_256_000  # ten years
RANGES: tuple[tuple[str, float, float], ...] = (
    ("priority", 100, 9999),
    ("gpu_count", 0, 100_000),
    ("gpu_memory_mb", 1, 100_000_000),
    ("cpu_cores", 0, 1_000_000),
    ("memory_mb", 0, 2_000_000_000),
    ("ranks", 1, 10_000),
    ("max_runtime_minutes", 0.01, MAX_RUNTIME_MINUTES),
    ("predicted_runtime_minutes", 0.01, MAX_RUNTIME_MINUTES),
    ("max_retries", 0, 100),
    ("grace_seconds", 0, 3600),
    ("reservation", 1, 2**63 - 1),
)
# Maximum length of texts, in characters.
MAX_LENGTHS = (("name", 200), ("workdir", 4096), ("script", 1 << 20), ("gpu_model", 500))
MAX_MODEL = 200  # of each alternative in gpu_model


def validate(request: JobRequest) -> list[FieldError]:
    """Return all problems of a request that its types do not catch; empty for a valid one."""
    problems = [
        FieldError(f, "out_of_range", f"must be between {lo} and {hi}")
        for f, lo, hi in RANGES
        if (value := getattr(request, f)) not in (None, AUTO) and not lo <= value <= hi
    ]
    problems += _command_problems(request)
    problems += _shape_problems(request)
    problems += _container_problems(request)
    problems += validate_text(request)
    problems += _label_problems(request)
    problems += _node_problems(request) if request.tolerations or request.node_affinity else []
    problems += _dependency_problems(request)
    problems += _array_problems(request.array) if request.array else []
    return problems


def _command_problems(request: JobRequest) -> list[FieldError]:
    if request.script is None and not request.command:
        return [
            FieldError("command", "required", 'give a command as an array, like ["python", "train.py"], or a script')
        ]
    if request.script is not None and request.command:
        return [FieldError("script", "conflict", "give either a command or a script, not both; args go with either")]
    if request.script is not None and not request.script.startswith("#!"):
        return [
            FieldError(
                "script", "no_interpreter", "the first line of a script must name its interpreter, like #!/bin/bash"
            )
        ]
    if request.command and not request.command[0]:
        return [FieldError("command", "required", "the first element of the command is the program to run")]
    return []


def _shape_problems(request: JobRequest) -> list[FieldError]:
    problems = []
    if request.ranks is not None and request.ranks > 1 and not request.gang_scheduling:
        problems.append(FieldError("ranks", "conflict", "more than one rank needs gang_scheduling: true"))
    if request.ranks and request.gpu_count and request.gpu_count % request.ranks:
        problems.append(
            FieldError(
                "ranks",
                "not_divisible",
                f"gpu_count {request.gpu_count} cannot be divided evenly by {request.ranks} ranks",
            )
        )
    if request.gpu_sharing is Sharing.SHARED and request.gpu_count and request.gpu_memory_mb is None:
        problems.append(
            FieldError("gpu_memory_mb", "required", "a shared GPU needs gpu_memory_mb: how much of it the job takes")
        )
    if request.gpu_count == 0 and (request.gpu_model or request.gpu_memory_mb):
        problems.append(
            FieldError("gpu_count", "conflict", "gpu_model and gpu_memory_mb need a gpu_count of at least 1")
        )
    if unknown := sorted(set(request.retry_on) - set(RETRYABLE)):
        problems.append(
            FieldError("retry_on", "unknown", f"any of {', '.join(RETRYABLE)}; not {', '.join(unknown)[:100]}")
        )
    return problems


def _container_problems(request: JobRequest) -> list[FieldError]:
    problems = []
    if request.runtime not in RUNTIMES:
        problems.append(FieldError("runtime", "unknown", f"one of {', '.join(RUNTIMES)}"))
    if request.image is None:
        if request.runtime in RUNTIMES[2:]:
            problems.append(FieldError("runtime", "conflict", f"{request.runtime} needs an image"))
        if request.mounts:
            problems.append(
                FieldError("mounts", "conflict", "mounts need an image; without one a job sees the node's files")
            )
        return problems
    if not IMAGE.match(request.image):
        problems.append(
            FieldError("image", "invalid", "a name like ghcr.io/team/train:1.2, or the path of a .sif file")
        )
    elif request.image.startswith("/") and request.runtime not in ("auto", "apptainer"):
        problems.append(FieldError("image", "conflict", "an image that is a file needs the runtime apptainer"))
    if request.runtime == "process":
        problems.append(FieldError("runtime", "conflict", "an image needs a container runtime; leave runtime out"))
    if len(request.mounts) > MAX_MOUNTS or not all(
        _MOUNT.match(mount) and ".." not in mount for mount in request.mounts
    ):
        problems.append(
            FieldError("mounts", "invalid", f"at most {MAX_MOUNTS}, each like /data:/data:ro, absolute and without ..")
        )
    return problems


def validate_text(request: JobRequest) -> list[FieldError]:
    """Return the problems of a request's texts."""
    problems = [
        FieldError(f, "too_long", f"at most {maximum} characters")
        for f, maximum in MAX_LENGTHS
        if (text := getattr(request, f)) and len(text) > maximum
    ]
    if request.gpu_model and any(len(model) > MAX_MODEL for model in request.gpu_models):
        problems.append(FieldError("gpu_model", "too_long", f"at most {MAX_MODEL} characters for each model"))
    if not gpu_models.is_gpu_model(request.gpu_model):
        problems.append(FieldError("gpu_model", "invalid", gpu_models.RULE))
    strings = [*request.command, *request.args]
    if sum(map(len, strings)) > 131_072 or len(strings) > 4096:
        problems.append(
            FieldError("command", "too_long", "command and args together: at most 4096 elements and 128 KiB")
        )
    if sum(len(k) + len(v) for k, v in request.environment.items()) > 131_072:
        problems.append(FieldError("environment", "too_long", "at most 128 KiB"))
    if request.secrets:
        problems += _secret_problems(request.secrets)
    texts = _all_texts(request)
    if "\x00" in "".join([text for _, text in texts]):
        named = [field for field, text in texts if "\x00" in text]
        problems += [FieldError(field, "invalid_character", "must not contain a NUL character") for field in named]
    for name in request.environment:
        if not VARIABLE.match(name):
            problems.append(
                FieldError("environment", "invalid_name", f"{name!r} is not a valid name of an environment variable")
            )
        elif name.startswith(RESERVED):
            problems.append(
                FieldError("environment", "reserved", f"{name} is set by gpusched and cannot be overridden")
            )
    if request.workdir is not None and not request.workdir.startswith("/"):
        problems.append(FieldError("workdir", "not_absolute", "must be an absolute path"))
    return problems


def _label_problems(request: JobRequest) -> list[FieldError]:
    problems = []
    for field, mapping in (("labels", request.labels), ("node_selector", request.node_selector)):
        if not mapping:
            continue
        bad = [k for k, v in mapping.items() if not is_label(k) or not is_value(v)]
        if bad or len(mapping) > MAX_LABELS:
            problems.append(
                FieldError(
                    field,
                    "invalid_label",
                    f"at most {MAX_LABELS} {LABEL_RULE}; not {bad[:3]}",
                )
            )
    if request.anti_affinity is not None and not is_label(request.anti_affinity):
        problems.append(FieldError("anti_affinity", "invalid_label", "one short word of letters, digits, . _ / -"))
    return problems


def _node_problems(request: JobRequest) -> list[FieldError]:
    problems = [
        FieldError(f"tolerations[{number}]", "invalid_toleration", problem)
        for number, toleration in enumerate(request.tolerations)
        for problem in toleration_problems(toleration)
    ]
    if len(request.tolerations) > MAX_TOLERATIONS:
        problems.append(FieldError("tolerations", "too_long", f"at most {MAX_TOLERATIONS}"))
    affinity = request.node_affinity
    wrong = affinity_problems(affinity) if affinity is not None else ()
    return problems + [FieldError(field, "invalid_affinity", problem) for field, problem in wrong]


def _dependency_problems(request: JobRequest) -> list[FieldError]:
    if request.ref and (request.ref.isdecimal() or not is_label(request.ref)):
        return [FieldError("ref", "invalid_label", "one short word of letters, digits, . _ / -, not digits alone")]
    if not request.depends_on:
        return []
    jobs = [dependency.job for dependency in request.dependencies]
    if len(jobs) > MAX_DEPENDENCIES:
        return [FieldError("depends_on", "too_long", f"at most {MAX_DEPENDENCIES} jobs")]
    if len(set(jobs)) < len(jobs):
        return [FieldError("depends_on", "duplicate", "names a job twice")]
    if not all(0 < job < 2**63 for job in jobs if isinstance(job, int)):
        return [FieldError("depends_on", "out_of_range", "ids of jobs are positive whole numbers")]
    return []


def _array_problems(array: ArrayRequest) -> list[FieldError]:
    limits = (("array.count", array.count, MAX_ELEMENTS), ("array.max_parallel", array.max_parallel, MAX_ELEMENTS))
    return [
        FieldError(field, "out_of_range", f"must be between 1 and {maximum}")
        for field, value, maximum in limits
        if value is not None and not 1 <= value <= maximum
    ]


def _secret_problems(names: list[str]) -> list[FieldError]:
    """Return the problems of secret names. No message repeats a name: it may be a secret given by mistake."""
    problems = []
    if bad := [index for index, name in enumerate(names) if not SECRET_NAME.match(name)]:
        message = f"must be names of secrets of the tenant, {SECRET_NAME_RULE}; number {bad[0] + 1} is invalid"
        problems.append(FieldError("secrets", "invalid_name", message))
    if len(names) > MAX_SECRETS:
        problems.append(FieldError("secrets", "too_long", f"at most {MAX_SECRETS}"))
    elif len(set(names)) < len(names):
        problems.append(FieldError("secrets", "repeated", "names a secret twice"))
    return problems


def _all_texts(request: JobRequest) -> list[tuple[str, str]]:
    pairs = [
        ("name", request.name),
        ("script", request.script or ""),
        ("workdir", request.workdir or ""),
    ]
    pairs += [("command", s) for s in request.command] + [("args", s) for s in request.args]
    return pairs + [("environment", v) for v in request.environment.values()]
