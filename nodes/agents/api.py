"""HTTP endpoints of agents: join, sync (if no WebSocket connection is possible), and logs."""

import logging
from collections.abc import Callable
from functools import wraps

import msgspec
from django.conf import settings
from django.db import DataError, IntegrityError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from gpusched.lib.api.problems import Problem, invalid, not_allowed, response_for
from gpusched.lib.api.rest import decode
from gpusched.lib.bus import events
from gpusched.lib.db.sql import query
from gpusched.lib.limits import MAX_LOG_BYTES
from gpusched.protocol.agent_messages import Join, LogAnswer, Sync, parse_rank_key
from gpusched.protocol.job_request import FieldError
from jobs.logs import store
from nodes.agents.sync import process_leniently
from nodes.inventory.join import authenticate, join_node, token_of

logger = logging.getLogger(__name__)


def _endpoint(view: Callable[[HttpRequest], msgspec.Struct]) -> Callable[[HttpRequest], HttpResponse]:
    @csrf_exempt
    @wraps(view)
    def wrapped(request: HttpRequest) -> HttpResponse:
        try:
            if request.method != "POST":
                return not_allowed("POST")
            return HttpResponse(msgspec.json.encode(view(request)), content_type="application/json")
        except Problem as problem:
            return response_for(problem)
        except (DataError, IntegrityError) as error:
            logger.warning("a message to %s cannot be written: %s", request.path, str(error).splitlines()[0])
            detail = "a value in this message is out of range"
            return response_for(Problem(400, "out_of_range", detail, next_step="check that a gpusched agent sent it"))

    return wrapped


@_endpoint
def join(request: HttpRequest) -> msgspec.Struct:
    token = token_of(request.headers.get("Authorization", ""))
    if not token:
        raise Problem(
            401, "not_authenticated", "this join token is unknown, expired or revoked", next_step="create a new one"
        )
    message = decode(request.body, Join)
    if not 8 <= len(message.node_key) <= 64 or not 1 <= len(message.name) <= 253 or "\x00" in message.name:
        raise invalid([FieldError("name", "out_of_range", "name: 1 to 253 characters; node_key: 8 to 64")])
    return join_node(message, settings.ENV.heartbeat_seconds, token)


def _node(request: HttpRequest) -> int:
    node_id = authenticate(request.headers.get("Authorization", ""))
    if node_id is None:
        raise Problem(401, "not_authenticated", "this is not a node's credential", next_step="join again")
    return node_id


@_endpoint
def sync(request: HttpRequest) -> msgspec.Struct:
    node_id = _node(request)
    return process_leniently(node_id, decode(request.body, Sync))


@_endpoint
def append_log(request: HttpRequest) -> msgspec.Struct:
    """Append a piece of a rank's log. 404 if the rank was never on this node: the agent may drop its log."""
    node_id = _node(request)
    key = parse_rank_key(request.GET.get("key", ""))
    offset = request.GET.get("offset", "")
    if key is None or not (offset.isascii() and offset.isdigit() and len(offset) < 16):
        raise invalid([FieldError("key", "invalid", "needs key=JOB.ATTEMPT.RANK and offset=BYTES")])
    if len(request.body) > MAX_LOG_BYTES:
        raise Problem(413, "too_large", f"send at most {MAX_LOG_BYTES} bytes at once")
    rows = query(
        "SELECT a.scheduled_at FROM nodes_assignment s JOIN jobs_attempts a ON a.id = s.attempt_id"
        " WHERE s.job_id = %s AND s.number = %s AND s.rank = %s AND s.node_id = %s",
        [*key, node_id],
    )
    if not rows:
        raise Problem(404, "not_found", "that rank was never assigned to this node")
    if not request.body:  # the agent asks from where to send
        store.drop_undone(*key, rows[0]["scheduled_at"])
    size = store.append(*key, int(offset), request.body)
    if request.body:
        events.changed("logs", [key[0]])
    return LogAnswer(size=size, most_bytes=store.max_bytes())
