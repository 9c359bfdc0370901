"""The template tag for the first state of a page's live regions."""

from typing import Any

from django import template
from django.utils.safestring import SafeString

from frontend.live import snapshot
from tenants.auth.identity import identity

register = template.Library()


@register.simple_tag(takes_context=True)
def carry(context: dict[str, Any], *topics: str) -> SafeString:
    """Return the rows of topics for the page's script, which draws them before its socket connects. Nothing when the
    script loads the page again for a region that the server draws: it has newer rows."""
    if context.get("is_refresh"):
        return SafeString("")
    caller = context.get("identity") or identity(context["request"])
    return snapshot.carried("snapshot", snapshot.load(topics, caller))
