"""REST for deliveries: what was sent to routes and webhooks, and how that went."""

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid
from gpusched.lib.api.rest import PAGED, cursor_number, page_limit, paged, read_query, whole_number
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.notifications import DeliveryData
from notifications import deliveries
from notifications.api.channels import MEMBER, OWN
from notifications.models import DeliveryState
from tenants.auth.identity import identity


class Deliveries(APIView):
    @documented(
        "List deliveries",
        tag="notifications",
        who="anybody",
        answer=Page[DeliveryData],
        parameters={
            "route": "id of a route or webhook",
            "state": f"one of {', '.join(state.value for state in DeliveryState)}",
            **PAGED,
        },
    )
    def get(self, request: Request) -> Response:
        """Those of the routes and webhooks that you see, newest first."""
        filters = read_query(request)
        state = filters.get("state")
        if state is not None and state not in DeliveryState:
            message = f"must be one of {', '.join(state.value for state in DeliveryState)}"
            raise invalid([FieldError("state", "unknown_value", message)])
        route = whole_number(filters, "route", 0, 1, 2**62) if "route" in filters else None
        limit = page_limit(filters)
        before = cursor_number(filters, "deliveries")
        items = deliveries.latest(identity(request), route_id=route, state=state, before=before, limit=limit)
        return Response(paged(items, limit, "deliveries"))


class OneDelivery(APIView):
    @documented("Read a delivery", tag="notifications", who=MEMBER, answer=DeliveryData)
    def get(self, request: Request, delivery_id: int) -> Response:
        """With how its latest attempt went."""
        return Response(deliveries.find(delivery_id, identity(request)))


class ReplayDelivery(APIView):
    @documented(
        "Send a delivery again",
        tag="notifications",
        who=OWN,
        answer=DeliveryData,
        refusals=(400, 401, 403, 404, 409),
    )
    def post(self, request: Request, delivery_id: int) -> Response:
        """Under the same id, so that a receiver that has it already can ignore it. 409 while it is pending."""
        return Response(deliveries.replay(delivery_id, identity(request)))
