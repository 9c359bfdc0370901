"""The codes of problems (gpusched/lib/api/problems.py), with their statuses and meanings."""

from gpusched.lib import limits

CODES: dict[str, tuple[int, str]] = {
    "invalid": (400, "fields are wrong; `errors` lists them"),
    "malformed_json": (400, "the body is not JSON"),
    "exceeds_burst": (400, "the submit needs more tokens than a token bucket ever holds, or allows in a day"),
    "bad_request": (400, "the request itself is malformed, or its host name is not in `GPUSCHED_ALLOWED_HOSTS`"),
    "out_of_range": (400, "a value in an agent's message does not fit (agents)"),
    "wrong_protocol": (400, "the endpoint takes tasks and the request is one to the OpenAI API, or the reverse"),
    "not_authenticated": (401, "no token, or one that is unknown, expired or revoked; wrong name or password"),
    "not_permitted": (403, "the role or the scope `admin` is missing"),
    "scope_missing": (403, "the token lacks `read` or `write`"),
    "quota_exceeded": (403, "the job requests more than its tenant may ever hold"),
    "budget_used_up": (403, "the budget of the tenant is used up: no jobs with GPUs, no hard reservations"),
    "extension_too_long": (403, "it is more than a member may extend a running job"),
    "too_many_no_shows": (403, "too many hard reservations of the caller were not used: soft ones only"),
    "not_admitted": (403, "a login by OpenID Connect of a user without access, on its page"),
    "node_removed": (
        401,
        "the node of this agent was removed; joining again needs a newer join token (agents)",
    ),
    "login_failed": (403, "a login by OpenID Connect that was not completed, on its page"),
    "password_change_required": (403, "the password is for one login, which must set a new one"),
    "not_found": (404, "it does not exist, or you may not see it"),
    "model_not_found": (404, "no endpoint has the name in `model`, or you may not see it (OpenAI API)"),
    "method_not_allowed": (405, "the address has no such method; `Allow` lists its methods"),
    "not_acceptable": (406, "`Accept` excludes JSON"),
    "idempotency_key_reused": (409, "the key was used with another body or address"),
    "name_taken": (409, "a tenant, a node, a user, or an endpoint of the tenant has that name"),
    "already_exists": (409, "the tenant has a token bucket of that scope, user and kind of limit"),
    "endpoint_draining": (409, "the endpoint drains and accepts no tasks"),
    "not_empty": (409, "the endpoint to remove has unfinished tasks"),
    "replicas_shared": (409, "other endpoints share the replicas of the endpoint to remove"),
    "no_result": (409, "the task has no result: it has not ended, or ended without one"),
    "tenant_archived": (409, "the tenant of the job or the endpoint is archived"),
    "tenant_has_jobs": (409, "the tenant to archive has pending or running jobs"),
    "named_in_settings": (409, "`GPUSCHED_OIDC_GROUPS` contains the name of the tenant to rename"),
    "last_admin": (409, "there is no other admin"),
    "last_owner": (409, "the tenant has no other owner who can log in"),
    "already_member": (409, "the user is a member of the tenant, perhaps with another role"),
    "managed_by_provider": (409, "the groups at the identity provider determine it (`GPUSCHED_OIDC_GROUPS`)"),
    "service_account": (409, "a service account has the role of its tokens"),
    "no_password_login": (409, "the account cannot log in with a password: a service account, or single sign-on"),
    "own_account": (409, "changing your own password needs the old one"),
    "rate_overlaps": (409, "the model already has a rate for a part of that time"),
    "role_differs": (409, "active tokens of the service account have another role"),
    "in_use": (409, "a job holds the GPU to retire, or a part of the node to remove; another node has the GPUs"),
    "wrong_state": (409, "the state of the job, or of the GPU, does not allow it"),
    "changed_meanwhile": (409, "another request changed the job at the same moment"),
    "no_room": (409, "the GPUs are reserved or in use at that time; the detail names what is in the way"),
    "reserved": (409, "a longer time limit would cross a reservation of the job's GPUs"),
    "promised": (409, "a longer time limit would delay the promised start of a pending job"),
    "not_listening": (409, "no process of the rank listens on the port or socket of the stream"),
    "other_format": (409, "the cycle was recorded in the format of another version of gpusched"),
    "rank_ended": (410, "the rank of the stream has ended (streams)"),
    "log_deleted": (410, "the log is older than `GPUSCHED_LOG_RETENTION_DAYS`"),
    "version_conflict": (412, "the quota, the budget or the policy was changed meanwhile"),
    "too_large": (
        413,
        f"a body over {limits.MAX_BODY_BYTES >> 20} MiB; over {limits.MAX_LOG_BYTES >> 20} MiB of a log "
        "at once (agents)",
    ),
    "address_too_long": (414, f"an address over {limits.MAX_HEAD_BYTES >> 10} KiB"),
    "unsupported_media_type": (415, "not `application/json`; for the input of a task: no media type, or a form"),
    "never_fits": (
        422,
        "the job fits on no node, or not on all nodes together; the detail names the largest possible request",
    ),
    "dependency_failed": (422, "a job that this one depends on has already ended otherwise, or was deleted"),
    "too_many_logins": (
        429,
        f"more than {limits.MAX_PER_NAME_AND_ADDRESS} attempts in {limits.LOGIN_WINDOW_SECONDS // 60} minutes with a "
        f"name from one address, {limits.MAX_PER_ADDRESS} from an address, or {limits.MAX_PER_NAME} with a name; "
        "with `Retry-After`. An IPv6 network of 64 bits counts as one address",
    ),
    "rate_limited": (
        429,
        f"more than `GPUSCHED_RATE_LIMIT_PER_MINUTE` requests with a token, or {limits.BAD_TOKENS_PER_MINUTE} requests "
        "with invalid tokens from an address (or IPv6 network of 64 bits); with `Retry-After`",
    ),
    "too_many_uploads": (429, "8 large inputs of tasks at once per web process, and 4 per caller"),
    "too_many_downloads": (
        429,
        f"{limits.MAX_DOWNLOADS} log downloads are in progress in this web process, or "
        f"{limits.MAX_DOWNLOADS_EACH} by the caller",
    ),
    "too_many_streams": (
        429,
        f"{limits.MAX_STREAMS} clients follow the events of this web process, or {limits.MAX_STREAMS_EACH} "
        "of the caller; with `Retry-After`",
    ),
    "too_many_questions": (
        429,
        f"{limits.MAX_QUESTIONS} what-if questions (explain, simulate, previews) are pending "
        f"in this web process, or {limits.MAX_QUESTIONS_EACH} of the caller; with `Retry-After`",
    ),
    "too_many_job_streams": (
        429,
        "the user has `GPUSCHED_MAX_STREAMS_PER_USER` open streams into jobs in this web process, or the node's agent "
        "carries its maximum",
    ),
    "headers_too_long": (431, f"address and headers over {limits.MAX_HEAD_BYTES >> 10} KiB together"),
    "out_of_tokens": (
        429,
        "a token bucket of the user or the tenant has too few tokens now, or its daily budget is used up; with "
        "`Retry-After`",
    ),
    "queue_full": (
        429,
        "the endpoint has `max_queue` waiting tasks; or all tenants together have `GPUSCHED_MAX_QUEUE_SIZE` queued "
        "jobs (or `GPUSCHED_MAX_DEFERRED_JOBS` that cannot start yet), and this tenant has its equal share of them; "
        "with `Retry-After`",
    ),
    "too_many_queued_jobs": (
        429,
        "the tenant, or the user in it, has reached its limit of queued jobs; with `Retry-After`",
    ),
    "too_many_deferred_jobs": (
        429,
        "the tenant, or the user in it, has reached its limit of jobs that cannot start yet (held, before "
        "`not_before`, dependent); with `Retry-After`",
    ),
    "unanswered": (503, "the answer took too long to compute, or its process ended; nothing was changed"),
    "stream_unsupported": (501, "the agent of the job's node is too old for streams, or cannot reach that target"),
    "stream_broken": (502, "the program in the job closed the stream, or a part in between failed (streams)"),
    "node_unreachable": (503, "the agent of the job's node has no WebSocket to a head that can be reached (streams)"),
    "database_unavailable": (
        503,
        "the database is unreachable or restarts; with `Retry-After`. A write may have been executed: repeat it "
        "with the same `Idempotency-Key`, and it is executed once",
    ),
    "storage_unavailable": (
        503,
        "the disk of logs and large tasks is full or hangs, or their object store does not answer; with `Retry-After`",
    ),
    "internal_error": (500, "a defect; a write may or may not have been executed"),
}
