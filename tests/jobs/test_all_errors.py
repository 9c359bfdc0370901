"""A60: the answer to a body with several errors lists all of them, whatever the kind of the first one."""

import re

import msgspec
import pytest

from gpusched.client.calls.jobs import as_request
from gpusched.client.errors import Invalid
from gpusched.lib.api import rest
from gpusched.lib.api.problems import Problem
from gpusched.protocol import choices
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.states import Scope
from tests.api.calls import call
from tests.factories import make_token

pytestmark = pytest.mark.django_db(transaction=True)


def errors(user, body, path="/api/v1/jobs"):
    answer = call("POST", path, make_token(user), body)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    return {error["field"]: error["code"] for error in answer.json()["errors"]}


def test_unknown_field_hides_no_other_error(user, tenant):
    """A60: two unknown fields, a wrong type and two values out of range."""
    body = {"command": ["x"], "gpus": 1, "colour": None, "name": 7, "gpu_count": -1, "priority": 10**6}
    assert errors(user, body) == {
        "gpus": "unknown_field",
        "colour": "unknown_field",
        "name": "wrong_type",
        "gpu_count": "out_of_range",
        "priority": "out_of_range",
    }


def test_unknown_inner_field_hides_no_other_error(user, tenant):
    """A60"""
    reported = errors(user, {"command": ["x"], "array": {"count": 2, "size": 3}, "gpu_count": -1})
    assert reported == {"size": "unknown_field", "gpu_count": "out_of_range"}


def test_command_of_the_wrong_type_is_reported_once(user, tenant):
    """A60: not as missing as well."""
    assert errors(user, {"command": "python train.py", "gpu_count": -1}) == {
        "command": "wrong_type",
        "gpu_count": "out_of_range",
    }


def test_bulk_reports_all_errors_of_each_job(user, tenant):
    """A60"""
    jobs = [{"command": ["x"]}, {"command": ["x"], "gpus": 1, "gpu_count": -1}]
    assert errors(user, {"jobs": jobs}, "/api/v1/jobs/bulk") == {
        "jobs[1].gpus": "unknown_field",
        "jobs[1].gpu_count": "out_of_range",
    }


@pytest.mark.parametrize("model", [" ", "|", " | ", "A\x01100", "A100\nH100", "\u202eA100", "A100\0"])
def test_model_that_is_blank_or_invisible_is_refused(user, tenant, model):
    """The one would match every model, the other none, for ever."""
    assert errors(user, {"command": ["x"], "gpu_count": 1, "gpu_model": model}) == {"gpu_model": "invalid"}
    reservation = {"tenant": tenant.name, "gpus": 1, "for_seconds": 600, "gpu_model": model}
    assert errors(user, reservation, "/api/v1/reservations") == {"gpu_model": "invalid"}


def test_body_with_many_errors_is_decoded_once_more(user, tenant, monkeypatch):
    decoded, decode = [], msgspec.json.decode

    def noted(*arguments, **options):
        decoded.append(1)
        return decode(*arguments, **options)

    monkeypatch.setattr("gpusched.lib.api.rest.msgspec.json.decode", noted)
    fields = {f"unknown{n}": 1 for n in range(30)}
    with pytest.raises(Problem) as caught:
        rest.decode(msgspec.json.encode({"command": ["x"], "gpu_count": 1.0, **fields}), JobRequest)
    assert {error.field for error in caught.value.errors} == {"gpu_count", *fields}
    assert len(decoded) == 2


def test_model_longer_than_its_column_is_refused(user, tenant):
    assert errors(user, {"command": ["x"], "gpu_count": 1, "gpu_model": "A100|" + "x" * 201}) == {
        "gpu_model": "too_long"
    }


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("topology", "x", "must be 'any', 'nvlink', 'numa', 'prefer_nvlink' or 'prefer_numa', not 'x'"),
        ("gpu_memory_mb", "all", "must be a whole number or 'auto', not 'all'"),
        ("depends_on", [{"job": 1, "kind": "end"}], "must be 'after_ok', 'after_any' or 'after_fail', not 'end'"),
        ("tolerations", [{"key": "a", "operator": ""}], "must be 'Equal' or 'Exists', not ''"),
        (
            "node_affinity",
            {"required": [{"key": "a", "operator": "Near"}]},
            "must be 'in', 'notin', 'exists' or 'doesnotexist', not 'Near'",
        ),
    ],
)
def test_field_with_a_fixed_choice_names_it(user, tenant, field, value, message):
    """A60: through the API, and in the client before it sends anything."""
    answer = call("POST", "/api/v1/jobs", make_token(user), {"command": ["x"], field: value})
    [error] = answer.json()["errors"]
    assert (error["field"].split(".")[0], error["code"], error["message"]) == (field, "wrong_type", message)
    with pytest.raises(Invalid, match=re.escape(message)):
        as_request({"command": ["x"], field: value})


def test_enumeration_of_a_whole_body_is_named():
    assert choices.named(Scope, "Invalid enum value 'x'") == "Must be 'read', 'write' or 'admin', not 'x'"
    inner = choices.named(dict[str, list[Scope]], "Invalid enum value 1 - at `$[...][0]`")
    assert inner == "Must be 'read', 'write' or 'admin', not 1 - at `$[...][0]`"
