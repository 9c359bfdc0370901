"""Call the REST API as the owner of a token."""

import msgspec
from django.test import Client


def call(method, path, token, body=None):
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    raw = b"" if method == "GET" else msgspec.json.encode(body or {})
    return Client().generic(method, path, raw, content_type="application/json", headers=headers)


def methods_of(endpoint):
    """Return the methods that an endpoint allows, besides OPTIONS and HEAD."""
    return set(endpoint.callback.cls().allowed_methods) - {"OPTIONS", "HEAD"}
