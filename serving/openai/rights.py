"""Find requests to the OpenAI API whose callers have lost the right to them while they wait or are answered."""

from collections.abc import Mapping

from gpusched.lib.db.sql import rows
from serving.endpoints import endpoints
from serving.models import Endpoint
from tenants.auth.page_access import Credential, identity_of

_OPEN = """
    SELECT id, endpoint_id FROM serving_inferencerequest
     WHERE id = ANY(%s::bigint[]) AND state IN ('queued', 'running')
"""


def ended(credentials: Mapping[int, Credential]) -> list[int]:
    """Return those of these requests whose callers may no longer use the endpoint: their token, session, membership or
    role has ended, or the endpoint is for others."""
    opened = dict(rows(_OPEN, [list(credentials)]))
    of_requests = Endpoint.objects.in_bulk(opened.values())
    callers = {credential: identity_of(credential) for credential in {credentials[number] for number in opened}}
    return [
        number
        for number, endpoint_id in opened.items()
        if (caller := callers[credentials[number]]) is None or not endpoints.may_use(of_requests[endpoint_id], caller)
    ]
