"""The form that submits a job: what is typed, turned into the fields of a job request, and refusals put beside them."""

import shlex
from typing import Any

import msgspec
from django import forms
from django.core.exceptions import ValidationError

from gpusched.lib.api import decode
from gpusched.lib.problems import Problem
from gpusched.protocol.jobs import JobRequest, problems
from gpusched.protocol.states import Sharing

_SHARING = ((Sharing.EXCLUSIVE, "whole GPUs"), (Sharing.SHARED, "part of a GPU's memory"))
# What the service takes when nothing is said: left out of the command and the JSON.
_DEFAULTS = {"gpu_count": 0, "gpu_sharing": "exclusive", "cpu_cores": 1.0, "memory_mb": 0, "priority": 500}


class SubmitForm(forms.Form):
    """Bounds and rules are the service's, so that page, command and API refuse with the same sentences."""

    tenant = forms.ChoiceField(error_messages={"required": "Say for which tenant."})
    name = forms.CharField(required=False)
    command = forms.CharField(required=False, strip=True)
    script = forms.CharField(required=False, strip=False)
    gpu_count = forms.IntegerField(required=False, initial=1)
    gpu_memory_mb = forms.IntegerField(required=False)
    gpu_model = forms.CharField(required=False)
    gpu_sharing = forms.ChoiceField(required=False, choices=_SHARING, initial=Sharing.EXCLUSIVE)
    cpu_cores = forms.FloatField(required=False, initial=1)
    memory_mb = forms.IntegerField(required=False, initial=0)
    priority = forms.IntegerField(required=False, initial=500)
    max_runtime_minutes = forms.FloatField(required=False)
    environment = forms.CharField(required=False)

    def __init__(self, tenants: list[str], data: Any = None, initial: dict[str, Any] | None = None) -> None:
        super().__init__(data, initial=initial)
        field = self.fields["tenant"]
        assert isinstance(field, forms.ChoiceField)
        field.choices = [(name, name) for name in tenants]

    def clean_command(self) -> list[str]:
        try:
            return shlex.split(self.cleaned_data["command"])
        except ValueError as error:
            raise ValidationError("a quote is not closed: write it as in a shell") from error

    def clean_script(self) -> str:
        script: str = self.cleaned_data["script"].replace("\r\n", "\n")
        return script if script.strip() else ""

    def clean_environment(self) -> dict[str, str]:
        pairs = {}
        for line in self.cleaned_data["environment"].splitlines():
            name, separator, value = line.partition("=")
            if line.strip() and not separator:
                raise ValidationError(f"write NAME=VALUE, one a line; not {line.strip()[:60]!r}")
            if line.strip():
                pairs[name.strip()] = value
        return pairs

    def job_fields(self) -> dict[str, Any]:
        """What is understood so far, without what is empty or as the service would have it anyway."""
        return {
            name: int(value) if isinstance(value, float) and value.is_integer() else value
            for name, value in self.cleaned_data.items()
            if value not in (None, "", [], {}) and _DEFAULTS.get(name) != value
        }

    def check(self) -> None:
        """What is wrong with the fields that are understood, where others are not: everything is said at once."""
        understood = decode(msgspec.json.encode(self.job_fields()), JobRequest)
        for error in problems(understood):
            if error.field in self.fields and error.field not in self.errors and error.code != "required":
                self.add_error(error.field, error.message)

    def refuse(self, problem: Problem) -> None:
        """Each sentence beside its field, what belongs to none above them all."""
        for error in problem.errors:
            field = error.field if error.field in self.fields else None
            self.add_error(field, error.message if field or not error.field else f"{error.field}: {error.message}")
        if not problem.errors:
            self.add_error(None, problem.detail)
        if problem.next_step and problem.status != 400:
            self.add_error(None, f"Next: {problem.next_step}")


def typed(job: dict[str, Any]) -> dict[str, Any]:
    """A job as somebody would type it into the form, to submit it again."""
    lines = "\n".join(f"{name}={value}" for name, value in job["environment"].items())
    given = {name: job[name] for name in SubmitForm.base_fields if name not in ("command", "environment")}
    return {**given, "command": shlex.join([*job["command"], *job["args"]]), "environment": lines}
