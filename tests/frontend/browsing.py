"""Shared by tests of the pages: a browser without JavaScript."""

import json
import re

from django.test import Client

PAGES = (
    "/overview/",
    "/mine/",
    "/fleet/",
    "/queue/",
    "/jobs/",
    "/nodes/",
    "/endpoints/",
    "/calendar/",
    "/join/",
    "/tenants/",
    "/usage/",
    "/cluster/health/",
    "/submit/",
    "/notifications/",
    "/tokens/",
)
HOSTILE = '<script>alert("x")</script>\'"&{{ 7 }}'


def browser(user=None, **options):
    client = Client(**options)
    if user is not None:
        client.force_login(user)
    return client


def text_of(response):
    return response.content.decode()


def found(pattern, text):
    match = re.search(pattern, text)
    assert match, f"no {pattern} in the page"
    return match[1]


def carried(response, kind="snapshot"):
    """Return what a page carries for its script: the rows by topic, or the first page of jobs."""
    data = json.loads(found(rf'(?s)<script type="application/json" data-{kind}>(.*?)</script>', text_of(response)))
    return data["topics"] if kind == "snapshot" else data


def form(**fields):
    return {"tenant": "nlp", "command": "python train.py", "gpu_count": "0", "cpu_cores": "1", **fields}
