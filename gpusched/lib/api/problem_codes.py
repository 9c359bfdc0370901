"""Every code that a refusal may have (gpusched/lib/api/problems.py), with its status and when it is answered."""

from gpusched.lib import limits

CODES: dict[str, tuple[int, str]] = {
    "invalid": (400, "fields are wrong; all that are found stand in `errors`"),
    "malformed_json": (400, "the body is no JSON"),
    "bad_request": (400, "the request itself is malformed"),
    "out_of_range": (400, "a value in an agent's message does not fit (agents)"),
    "not_authenticated": (401, "no token, or one that is unknown, expired or revoked; wrong name or password"),
    "not_permitted": (403, "the role or the scope `admin` is missing"),
    "scope_missing": (403, "the token lacks `read` or `write`"),
    "quota_exceeded": (403, "the job asks for more than its tenant may ever hold"),
    "budget_used_up": (403, "the job asks for GPUs, and the budget of its tenant is used up until it is renewed"),
    "extension_too_long": (403, "a member may extend a running job by less"),
    "not_admitted": (403, "a login by OpenID Connect of somebody who may not come in, on its page"),
    "node_removed": (
        401,
        "the node of this agent was removed; it joins again with a join token made after that (agents)",
    ),
    "login_failed": (403, "a login by OpenID Connect that was not completed, on its page"),
    "password_change_required": (403, "the password is for one login, at which a new one must be set"),
    "not_found": (404, "it does not exist, or you may not see it"),
    "method_not_allowed": (405, "the address does something else; `Allow` says by which methods"),
    "not_acceptable": (406, "asked for something other than JSON"),
    "idempotency_key_reused": (409, "the key was used with another body or address"),
    "name_taken": (409, "a tenant, a node or a person has that name"),
    "tenant_archived": (409, "the tenant of the job is archived"),
    "tenant_has_jobs": (409, "the tenant that is to be archived has jobs that wait or run"),
    "named_in_settings": (409, "`GPUSCHED_OIDC_GROUPS` has the name of the tenant that is to be renamed"),
    "last_admin": (409, "nobody else is an admin"),
    "last_owner": (409, "nobody else who can log in is an owner of the tenant"),
    "already_member": (409, "the user is a member of the tenant, perhaps with another role"),
    "managed_by_provider": (409, "the groups at the identity provider decide it (`GPUSCHED_OIDC_GROUPS`)"),
    "service_account": (409, "the account of a program has the role that its tokens have"),
    "no_password_login": (409, "no password lets the account in: of a program, or of single sign-on"),
    "own_account": (409, "to reset your own password needs the old one"),
    "rate_overlaps": (409, "the model has a rate for a part of that time"),
    "role_differs": (409, "a program's tokens in use have another role"),
    "in_use": (409, "a job holds the GPU that is to be retired, or something of the node that is to be removed"),
    "wrong_state": (409, "the job, or the GPU, is in no state that allows it"),
    "changed_meanwhile": (409, "the job was changed by somebody else in the same moment"),
    "promised": (409, "a waiting job is promised a start that a longer time limit would move"),
    "other_format": (409, "a version of gpusched with another format recorded the cycle"),
    "log_deleted": (410, "the log is older than `GPUSCHED_LOG_RETENTION_DAYS`"),
    "version_conflict": (412, "the quota, the budget or the policy was changed meanwhile"),
    "too_large": (
        413,
        f"a body of more than {limits.MAX_BODY_BYTES >> 20} MiB; more than {limits.MAX_LOG_BYTES >> 20} MiB of log "
        "at once (agents)",
    ),
    "address_too_long": (414, f"an address of more than {limits.MAX_HEAD_BYTES >> 10} KiB"),
    "unsupported_media_type": (415, "not `application/json`"),
    "never_fits": (
        422,
        "no node, or not all nodes together, could ever hold the job; the sentence says the largest possible",
    ),
    "dependency_failed": (422, "a job that this one depends on has already ended in another way"),
    "too_many_logins": (
        429,
        f"more than {limits.MAX_PER_NAME_AND_ADDRESS} attempts in {limits.LOGIN_WINDOW_SECONDS // 60} minutes with a "
        f"name from one address, {limits.MAX_PER_ADDRESS} from an address, or {limits.MAX_PER_NAME} with a name; "
        "`Retry-After` says how many seconds to wait",
    ),
    "rate_limited": (
        429,
        f"more than `GPUSCHED_RATE_LIMIT_PER_MINUTE` requests of a token, or {limits.BAD_TOKENS_PER_MINUTE} requests "
        "with bad tokens from an address; with `Retry-After`",
    ),
    "too_many_downloads": (
        429,
        f"{limits.MAX_DOWNLOADS} logs are being downloaded from this web process already, or "
        f"{limits.MAX_DOWNLOADS_EACH} by the caller",
    ),
    "too_many_streams": (
        429,
        f"{limits.MAX_STREAMS} readers follow the events of this web process already, or {limits.MAX_STREAMS_EACH} "
        "of the caller; with `Retry-After`",
    ),
    "too_many_questions": (
        429,
        f"{limits.MAX_QUESTIONS} questions about what would be (explain, simulate, previews) wait for their answers "
        f"from this web process already, or {limits.MAX_QUESTIONS_EACH} of the caller; with `Retry-After`",
    ),
    "headers_too_long": (431, f"address and headers of more than {limits.MAX_HEAD_BYTES >> 10} KiB together"),
    "queue_full": (
        429,
        "all tenants together have `GPUSCHED_MAX_QUEUE_SIZE` queued jobs (or `GPUSCHED_MAX_DEFERRED_JOBS` that cannot "
        "start yet), and this tenant has an even part of them; with `Retry-After`",
    ),
    "too_many_queued_jobs": (
        429,
        "the tenant, or the user in it, has as many queued jobs as allowed; with `Retry-After`",
    ),
    "too_many_deferred_jobs": (
        429,
        "the tenant, or the user in it, has as many jobs that cannot start yet (held, before `not_before`, dependent) "
        "as allowed; with `Retry-After`",
    ),
    "unanswered": (503, "what would be took too long to work out, or the process that does it ended; nothing was done"),
    "database_unavailable": (
        503,
        "the database is away or restarts; with `Retry-After`. Whether a write was carried out is not known: repeat it "
        "with the same `Idempotency-Key`, and it is carried out once",
    ),
    "internal_error": (500, "a defect; whether a write was carried out is not known"),
}
