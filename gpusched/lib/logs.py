"""The lines of the server's log as JSON: with the id of the request that is being served."""

from gpusched.json_log import JsonLines as Lines
from gpusched.lib.request_id import current_id


class JsonLines(Lines):
    """Also `request_id`, within a request."""

    def context(self) -> dict[str, str]:
        request_id = current_id()
        return {"request_id": request_id} if request_id else {}
