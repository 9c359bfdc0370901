"""An object that another request removes while a request works on it: 404, not a failure of the server."""

import pytest

from serving.endpoints import endpoints
from serving.models import Endpoint
from tenants import bucket_limits
from tenants.models import TokenBucket
from tests.api.calls import call
from tests.factories import make_node, make_tenant, make_token, make_user

pytestmark = pytest.mark.django_db
ENDPOINT = {"name": "embed", "tenant": "nlp", "template": {"command": ["serve"], "gpu_count": 1}}
BUCKET = {"tenant": "nlp", "scope": "tenant", "limits": "jobs", "rate_per_second": 1, "burst": 1}


@pytest.fixture
def token():
    make_node(gpus=2)
    make_tenant("nlp")
    token = make_token(make_user("root", admin=True))
    for path, body in (("endpoints", ENDPOINT), ("buckets", BUCKET)):
        answer = call("POST", f"/api/v1/{path}", token, body)
        assert answer.status_code == 201, answer.content
    return token


@pytest.mark.parametrize(
    ("method", "path", "body", "module", "work", "model"),
    [
        ("PATCH", "endpoints/embed", {"max_batch": 4}, endpoints, "change", Endpoint),
        ("POST", "endpoints/embed/drain", None, endpoints, "drain", Endpoint),
        ("GET", "endpoints/embed", None, endpoints, "find", Endpoint),
        ("PATCH", "buckets/{bucket}", {"burst": 2}, bucket_limits, "change", TokenBucket),
    ],
)
def test_removal_meanwhile_is_not_found(monkeypatch, token, method, path, body, module, work, model):
    do = getattr(module, work)

    def do_and_lose(*arguments, **options):
        result = do(*arguments, **options)
        model.objects.all().delete()
        return result

    monkeypatch.setattr(module, work, do_and_lose)
    answer = call(method, "/api/v1/" + path.format(bucket=TokenBucket.objects.get().pk), token, body)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
