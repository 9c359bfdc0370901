"""The lines of the server's log as JSON: with the id of the request that is being served."""

from gpusched.lib.requests import current_id
from gpusched.loglines import JsonLines as Lines


class JsonLines(Lines):
    """Also `request_id`, within a request."""

    def context(self) -> dict[str, str]:
        request_id = current_id()
        return {"request_id": request_id} if request_id else {}
