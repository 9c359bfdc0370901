"""The cluster's state on the admin index: the same data as the overview, for the same viewer."""

from typing import Any

from django import template
from django.http import HttpRequest

from frontend.pages.overview.view import cluster_now
from tenants.auth.identity import identity

register = template.Library()


@register.simple_tag
def cluster_state(request: HttpRequest) -> dict[str, Any]:
    return cluster_now(identity(request))
