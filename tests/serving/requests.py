"""Endpoints and their requests for tests."""

from serving.former import Batch, Flush
from serving.models import Endpoint, InferenceRequest
from serving.requests import claims
from serving.requests.submit import NewRequest, submit
from tests.factories import identity_for


def make_endpoint(tenant, user, **fields):
    values = {"name": "embed", "cost": 1.0, "template": {"command": ["true"]}, **fields}
    return Endpoint.objects.create(tenant=tenant, owner=user, **values)


def ask(endpoint, user, count=1, **fields):
    requests = [NewRequest(b'"%d"' % number, "application/json", **fields) for number in range(count)]
    return submit(endpoint, requests, identity_for(user)).ids


def claim(ids, endpoint=1, replica=1, dispatcher=1):
    return claims.claim(dispatcher, [Batch(replica, endpoint, tuple(ids), Flush.SIZE)])[0]


def state(number):
    return InferenceRequest.objects.get(pk=number).state
