"""The bodies of uploads, which may exceed DATA_UPLOAD_MAX_MEMORY_SIZE, Django's limit for bodies that it parses."""

from django.conf import settings
from django.http import HttpRequest

from gpusched.lib.api.problems import too_large

_ATTRIBUTE = "gpusched_upload"


def upload_body(request: HttpRequest) -> bytes:
    """Return the body, any number of times; 413 above the limit of its address (UPLOAD_MAX_BYTES)."""
    usual = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    limit, length = settings.UPLOAD_MAX_BYTES.get(request.path, usual), int(request.META.get("CONTENT_LENGTH") or 0)
    if length > limit:
        raise too_large(limit)
    if length <= usual:
        return request.body
    if not hasattr(request, _ATTRIBUTE):
        setattr(request, _ATTRIBUTE, request.read())
    body: bytes = getattr(request, _ATTRIBUTE)
    return body
