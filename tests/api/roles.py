"""The least role for each operation, written by hand, and the answer to everybody else."""

from tests.api.operations import Operation

# From who may least to who may most. The jobs are the member's; a colleague is another member of their tenant, a
# stranger one of another tenant.
CALLERS = ("anonymous", "stranger", "viewer", "colleague", "member", "owner", "admin")
# `who` as it is documented → the first of CALLERS that may.
LEAST = {
    "no token": "anonymous", "anybody": "stranger", "viewer": "viewer", "member": "colleague",
    "own jobs: member, else owner": "member", "own endpoints: member, else owner": "member",
    "own tasks: member, else owner": "member", "own reservations: member, else owner": "member", "own routes: anybody, else owner": "owner",
    "own routes: anybody, else member": "colleague", "owner": "owner", "admin": "admin", "its user": "admin",
}  # fmt: skip
_OPERATIONS = {
    "no token": """
        GET /api/v1/health
        POST /api/v1/login
        GET /api/v1/ready
        GET /health
        GET /ready
    """,
    "anybody": """
        GET /api/v1/cluster/status
        GET /api/v1/gpus
        GET /api/v1/gpus/{device_id}/samples
        GET /api/v1/me
        GET /api/v1/notifications/deliveries
        GET /api/v1/notifications/routes
        GET /api/v1/webhooks
        GET /api/v1/nodes
        GET /api/v1/nodes/{name}
        GET /api/v1/nodes/{name}/labels
        GET /api/v1/nodes/{name}/taints
        GET /api/v1/queue
        GET /api/v1/queue/usage
        GET /api/v1/rates
        GET /api/v1/reservations/next-slot
        GET /api/v1/scheduling/policy
        GET /api/v1/scheduling/shares
        GET /api/v1/tenants
        GET /api/v1/tokens
        POST /api/v1/tokens
        PUT /api/v1/me/password
    """,
    "its user": """
        DELETE /api/v1/tokens/{token_id}
    """,
    "viewer": """
        GET /api/v1/buckets
        GET /api/v1/endpoints
        GET /api/v1/endpoints/{name}
        GET /api/v1/events
        GET /api/v1/jobs
        GET /api/v1/jobs/count
        GET /api/v1/jobs/{job_id}
        GET /api/v1/jobs/{job_id}/attempts
        GET /api/v1/jobs/{job_id}/elements
        GET /api/v1/jobs/{job_id}/events
        GET /api/v1/jobs/{job_id}/explain
        GET /api/v1/jobs/{job_id}/logs
        GET /api/v1/reservations
        GET /api/v1/reservations/{reservation_id}
        GET /api/v1/tasks
        GET /api/v1/tasks/{task_id}
        GET /api/v1/tasks/{task_id}/result
        GET /api/v1/tenants/{name}
        GET /api/v1/tenants/{name}/budget
        GET /api/v1/tenants/{name}/members
        GET /api/v1/tenants/{name}/quota
        GET /api/v1/tenants/{name}/usage
    """,
    "member": """
        POST /api/v1/endpoints
        POST /api/v1/jobs
        POST /api/v1/jobs/bulk
        POST /api/v1/jobs/simulate
        POST /api/v1/reservations
        POST /api/v1/tasks
        GET /api/v1/tenants/{name}/secrets
    """,
    "own routes: anybody, else member": """
        GET /api/v1/notifications/deliveries/{delivery_id}
        GET /api/v1/notifications/routes/{route_id}
        GET /api/v1/webhooks/{webhook_id}
    """,
    "own routes: anybody, else owner": """
        POST /api/v1/notifications/deliveries/{delivery_id}/replay
        POST /api/v1/notifications/routes
        PATCH /api/v1/notifications/routes/{route_id}
        DELETE /api/v1/notifications/routes/{route_id}
        POST /api/v1/notifications/routes/{route_id}/test
        POST /api/v1/webhooks
        PATCH /api/v1/webhooks/{webhook_id}
        DELETE /api/v1/webhooks/{webhook_id}
        POST /api/v1/webhooks/{webhook_id}/rotate-secret
        POST /api/v1/webhooks/{webhook_id}/test
    """,
    "own endpoints: member, else owner": """
        PATCH /api/v1/endpoints/{name}
        DELETE /api/v1/endpoints/{name}
        POST /api/v1/endpoints/{name}/drain
    """,
    "own reservations: member, else owner": """
        POST /api/v1/reservations/{reservation_id}/cancel
        POST /api/v1/reservations/{reservation_id}/renew
        POST /api/v1/reservations/{reservation_id}/shorten
    """,
    "own tasks: member, else owner": """
        POST /api/v1/tasks/{task_id}/cancel
    """,
    "own jobs: member, else owner": """
        DELETE /api/v1/jobs/{job_id}
        POST /api/v1/jobs/{job_id}/cancel
        POST /api/v1/jobs/{job_id}/extend
        POST /api/v1/jobs/{job_id}/hold
        POST /api/v1/jobs/{job_id}/release
        POST /api/v1/jobs/{job_id}/requeue
        POST /api/v1/jobs/{job_id}/retry
        POST /api/v1/jobs/{job_id}/signal
    """,
    "owner": """
        DELETE /api/v1/tenants/{name}/secrets/{secret}
        PUT /api/v1/tenants/{name}/secrets/{secret}
        POST /api/v1/tenants/{name}/members
        PATCH /api/v1/tenants/{name}/members/{username}
        DELETE /api/v1/tenants/{name}/members/{username}
        GET /api/v1/tenants/{name}/service-tokens
        POST /api/v1/tenants/{name}/service-tokens
        DELETE /api/v1/tenants/{name}/service-tokens/{token_id}
    """,
    "admin": """
        GET /api/v1/audit
        POST /api/v1/buckets
        PATCH /api/v1/buckets/{bucket_id}
        DELETE /api/v1/buckets/{bucket_id}
        POST /api/v1/gpus/{device_id}/clear
        POST /api/v1/gpus/{device_id}/quarantine
        POST /api/v1/gpus/{device_id}/retire
        GET /api/v1/idle-exemptions
        POST /api/v1/idle-exemptions
        DELETE /api/v1/idle-exemptions/{exemption_id}
        GET /api/v1/incidents
        POST /api/v1/nodes/join-tokens
        DELETE /api/v1/nodes/{name}
        POST /api/v1/nodes/{name}/cordon
        POST /api/v1/nodes/{name}/drain
        PATCH /api/v1/nodes/{name}/labels
        PATCH /api/v1/nodes/{name}/taints
        POST /api/v1/nodes/{name}/rotate-credential
        POST /api/v1/nodes/{name}/uncordon
        POST /api/v1/rates
        DELETE /api/v1/rates/{rate_id}
        GET /api/v1/scheduling/cycles
        GET /api/v1/scheduling/cycles/{cycle_id}/replay
        PATCH /api/v1/scheduling/policy
        GET /api/v1/scheduling/policy/history
        POST /api/v1/tenants
        PATCH /api/v1/tenants/{name}
        PUT /api/v1/tenants/{name}/budget
        PUT /api/v1/tenants/{name}/quota
        POST /api/v1/tenants/{name}/archive
        POST /api/v1/tenants/{name}/rename
        POST /api/v1/tenants/{name}/unarchive
        GET /api/v1/users
        POST /api/v1/users
        GET /api/v1/users/{username}
        PATCH /api/v1/users/{username}
        POST /api/v1/users/{username}/disable
        POST /api/v1/users/{username}/enable
        POST /api/v1/users/{username}/reset-password
    """,
}
WHO: dict[str, str] = {line.strip(): who for who, lines in _OPERATIONS.items() for line in lines.strip().splitlines()}
# Lists of what one may see, which are empty for strangers.
_LISTS = tuple(f"GET /api/v1/{path}" for path in ("jobs", "jobs/count", "events", "endpoints", "tasks", "buckets",
                                              "reservations"))  # fmt: skip
DONE = 200  # for any good status


def expected(caller: str, operation: Operation) -> int:
    """The status that `caller` gets where there is something to do: DONE, 401, 403 or 404."""
    who = WHO[operation.name]
    if CALLERS.index(caller) >= CALLERS.index(LEAST[who]) or (caller == "stranger" and operation.name in _LISTS):
        return DONE
    if caller == "anonymous":
        return 401
    # Callers do not learn that hidden objects exist; only its user sees a token.
    is_hidden = who != "admin" or operation.path.startswith("/api/v1/tenants/{name}")
    return 404 if who == "its user" or (caller == "stranger" and is_hidden) else 403
