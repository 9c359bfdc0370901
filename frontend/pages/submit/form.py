"""The form that submits a job: parsing into a job request, and errors beside fields."""

import re
import shlex
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
from django import forms
from django.core.exceptions import ValidationError

from frontend.pages.submit import equivalent
from frontend.pages.submit.equivalent import is_default
from gpusched.lib.api.problems import Problem
from gpusched.lib.api.rest import decode
from gpusched.protocol.affinity import expression_of, preference_of, toleration_of
from gpusched.protocol.arrays import array_of
from gpusched.protocol.job_request import AUTO, RUNTIMES, FieldError, JobRequest, validate
from gpusched.protocol.states import Sharing, Topology, WorkloadClass

_SHARING = ((Sharing.EXCLUSIVE, "whole GPUs"), (Sharing.SHARED, "part of a GPU's memory"))
_CLASSES = ((WorkloadClass.BATCH, "batch"), (WorkloadClass.ONLINE, "online"))
_TOPOLOGIES = (
    (Topology.ANY, "anywhere"),
    (Topology.PREFER_NVLINK, "NVLink if possible"),
    (Topology.PREFER_NUMA, "one NUMA node if possible"),
    (Topology.NVLINK, "NVLink or wait"),
    (Topology.NUMA, "one NUMA node or wait"),
)
_YES_NO = (("yes", "yes"), ("no", "no"))
# Fields typed as lines of NAME=VALUE, as a list, or chosen as yes or no.
_PAIRS = ("environment", "labels", "node_selector")
_LISTS = ("secrets", "depends_on", "retry_on")
# Typed as words of a shell: a line that is quoted as there.
_WORDS = ("command", "args", "mounts")
_SWITCHES = ("gang_scheduling", "preemptible", "requeue")
# Fields parsed line by line, and the part of `node_affinity` that some become.
_LINES: dict[str, Callable[[str], msgspec.Struct]] = {
    "affinity": expression_of,
    "prefer": preference_of,
    "tolerations": toleration_of,
}
_AFFINITY = {"affinity": "required", "prefer": "preferred"}


class SubmitForm(forms.Form):
    """The submit form. The service validates, so that page, command and API return the same messages."""

    tenant = forms.ChoiceField(error_messages={"required": "Choose a tenant."})
    name = forms.CharField(required=False)
    command = forms.CharField(required=False, strip=True)
    script = forms.CharField(required=False, strip=False)
    args = forms.CharField(required=False)
    gpu_count = forms.IntegerField(required=False, initial=1)
    gpu_memory_mb = forms.CharField(required=False)
    gpu_model = forms.CharField(required=False)
    gpu_sharing = forms.ChoiceField(required=False, choices=_SHARING, initial=Sharing.EXCLUSIVE)
    cpu_cores = forms.FloatField(required=False, initial=1)
    memory_mb = forms.IntegerField(required=False, initial=0)
    priority = forms.IntegerField(required=False, initial=500)
    max_runtime_minutes = forms.FloatField(required=False)
    environment = forms.CharField(required=False, strip=False)
    secrets = forms.CharField(required=False)
    array = forms.CharField(required=False)
    labels = forms.CharField(required=False)
    node_selector = forms.CharField(required=False)
    affinity = forms.CharField(required=False)
    prefer = forms.CharField(required=False)
    tolerations = forms.CharField(required=False)
    depends_on = forms.CharField(required=False)
    not_before = forms.CharField(required=False)
    workdir = forms.CharField(required=False)
    image = forms.CharField(required=False)
    runtime = forms.ChoiceField(required=False, choices=[(name, name) for name in RUNTIMES], initial="auto")
    mounts = forms.CharField(required=False)
    gang_scheduling = forms.ChoiceField(required=False, choices=_YES_NO, initial="no")
    ranks = forms.IntegerField(required=False)
    topology = forms.ChoiceField(required=False, choices=_TOPOLOGIES, initial=Topology.ANY)
    anti_affinity = forms.CharField(required=False)
    reservation = forms.IntegerField(required=False)
    workload_class = forms.ChoiceField(required=False, choices=_CLASSES, initial=WorkloadClass.BATCH)
    preemptible = forms.ChoiceField(required=False, choices=_YES_NO, initial="yes")
    requeue = forms.ChoiceField(required=False, choices=_YES_NO, initial="yes")
    max_retries = forms.IntegerField(required=False, initial=0)
    retry_on = forms.CharField(required=False)
    predicted_runtime_minutes = forms.FloatField(required=False)
    grace_seconds = forms.IntegerField(required=False, initial=30)

    def __init__(self, tenants: list[str], data: Any = None, initial: dict[str, Any] | None = None) -> None:
        super().__init__(data, initial=initial)
        field = self.fields["tenant"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(name, name) for name in tenants]
        # As the browser would choose: a field that differs from the page's counts as restored, and asks again.
        field.initial = tenants[0] if tenants else None

    def clean_gpu_memory_mb(self) -> int | str | None:
        text = self.cleaned_data["gpu_memory_mb"].strip().lower()
        if text in ("", AUTO):
            return text or None
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise ValidationError("Enter a whole number, or auto.")
        return int(text)

    def clean_array(self) -> dict[str, int] | None:
        if not (text := self.cleaned_data["array"].strip()):
            return None
        try:
            array = array_of(text)
        except ValueError as error:
            raise ValidationError(str(error)) from error
        return {
            "count": array.count,
            **({"max_parallel": array.max_parallel} if array.max_parallel is not None else {}),
        }

    def clean_script(self) -> str:
        script: str = self.cleaned_data["script"].replace("\r\n", "\n")
        return script if script.strip() else ""

    def clean(self) -> None:
        for name in _PAIRS:
            self._understand(name, _parse_pairs)
        for name in _LISTS:
            self._understand(name, _parse_list)
        # A path to mount has no comma: there it separates, too.
        self.cleaned_data["mounts"] = (self.cleaned_data.get("mounts") or "").replace(",", " ")
        for name in _WORDS:
            self._understand(name, _parse_words)
        for name in _SWITCHES:
            if value := self.cleaned_data.get(name):
                self.cleaned_data[name] = value == "yes"
        for name, read in _LINES.items():
            self._understand(name, partial(_parse_lines, read=read))
        parts = {part: self.cleaned_data.pop(name, []) for name, part in _AFFINITY.items()}
        if any(parts.values()):
            self.cleaned_data["node_affinity"] = parts

    def _understand(self, name: str, read: Any) -> None:
        try:
            self.cleaned_data[name] = read(self.cleaned_data.get(name) or "")
        except ValidationError as error:
            self.add_error(name, error)

    def job_fields(self) -> dict[str, Any]:
        """Return the parsed fields, without empty values and defaults."""
        return {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in self.cleaned_data.items()
            if value not in (None, "", [], {}) and not is_default(name, value)
        }

    def check(self) -> None:
        """Validate the parsed fields when others failed, so that all errors appear at once."""
        understood = decode(msgspec.json.encode(self.job_fields()), JobRequest)
        for error in validate(understood):
            field = _field(error)
            if field in self.fields and field not in self.errors and error.code != "required":
                self.add_error(field, error.message)

    def refuse(self, problem: Problem) -> None:
        """Add each error to its field, or above the form."""
        for error in problem.errors:
            field = _field(error) if _field(error) in self.fields else None
            message = _MESSAGES.get((error.field, error.code), error.message)
            self.add_error(field, message if field or not error.field else f"{error.field}: {message}")
        if not problem.errors:
            self.add_error(None, problem.detail)
        if problem.next_step and problem.status != 400:
            self.add_error(None, f"Next: {problem.next_step}")

    @property
    def multiline(self) -> set[str]:
        """Return which of the fields of one line have several: a browser removes line breaks from an input."""
        return {name for name in _WORDS if "\n" in str(self[name].value() or "")}

    @property
    def has_more(self) -> bool:
        """Return whether the folded fields have values or errors, so that they are shown."""
        values = {name: self[name].value() for name in MORE}
        return any(
            self[name].errors or str(values[name] or "") != str(self.fields[name].initial or "") for name in MORE
        )


# Replacements for API messages that do not fit the form.
_MESSAGES = {("command", "required"): "enter a command, or a script below"}
# Folded until needed.
MORE = ("array", "secrets", "labels", "node_selector", "affinity", "prefer", "tolerations", "depends_on",
        "not_before", "workdir", "image", "runtime",
        "mounts", "gang_scheduling", "ranks", "topology", "anti_affinity", "reservation", "workload_class",
        "preemptible", "requeue", "max_retries", "retry_on", "predicted_runtime_minutes", "grace_seconds",
        "environment")  # fmt: skip


def _field(error: FieldError) -> str:
    """Return the form field of an error: `array.count` belongs to `array`."""
    parts = re.split(r"[.\[]", error.field)
    if parts[0] == "node_affinity":
        return next((name for name, part in _AFFINITY.items() if part in parts), "affinity")
    return parts[0]


def _parse_pairs(text: str) -> dict[str, str]:
    pairs = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if line.strip() and not separator:
            raise ValidationError(f"write NAME=VALUE, one per line; not {line.strip()[:60]!r}")
        if line.strip():
            pairs[name.strip()] = value
    return pairs


def _parse_lines(text: str, read: Callable[[str], msgspec.Struct]) -> list[Any]:
    """Read each line that is not empty."""
    try:
        return [msgspec.to_builtins(read(line)) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise ValidationError(str(error)) from error


def _parse_list(text: str) -> list[str]:
    return [word for word in re.split(r"[\s,]+", text) if word]


def _parse_words(text: str) -> list[str]:
    try:
        return shlex.split(text.replace("\r\n", "\n"))
    except ValueError as error:
        raise ValidationError("a quote is not closed: write it as in a shell") from error


def not_typed(job: dict[str, Any]) -> list[str]:
    """Return the names of the job's variables that the form cannot hold: a line is a variable."""
    return [name for name, value in job["environment"].items() if len(f"{value}.".splitlines()) > 1]


def typed(job: dict[str, Any]) -> dict[str, Any]:
    """Return the form values of a job, to submit it again."""
    values = {name: job[name] for name in SubmitForm.base_fields if name in job}
    left_out = not_typed(job)
    lines = {
        name: "\n".join(f"{key}={value}" for key, value in job[name].items() if key not in left_out) for name in _PAIRS
    }
    if job.get("gpu_memory_auto"):
        values["gpu_memory_mb"] = AUTO
    # The arguments of a script have a field of their own, those of a command belong to its line.
    command, args = ([], job["args"]) if job["script"] else ([*job["command"], *job["args"]], [])
    lists = {name: " ".join(_list_items(job[name])) for name in _LISTS}
    switches = {name: "yes" if job[name] else "no" for name in _SWITCHES}
    array = job.get("array")
    values["array"] = equivalent.array_words(array) if array else ""
    constraints = {name: "\n".join(texts) for name, texts in equivalent.constraint_texts(job).items()}
    return {
        **values,
        **lines,
        **lists,
        **switches,
        **constraints,
        "command": shlex.join(command),
        "args": shlex.join(args),
        "mounts": shlex.join(job["mounts"]),
    }


def _list_items(values: Iterable[Any]) -> Iterable[str]:
    """Format list items; dependencies become `kind:id`."""
    return (f"{value['kind']}:{value['job']}" if isinstance(value, dict) else str(value) for value in values)
