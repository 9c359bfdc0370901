"""REST for accounts: admins create, list, change, disable and enable them and reset passwords; users change their own
password."""

from typing import Any, Literal

import msgspec
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.models import User
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api import rate_limits
from gpusched.lib.api.dry_run import is_dry_run
from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.api.rest import PAGED, cursor_number, encode_cursor, is_true, page_limit, read_body, read_query
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.access import ChangedPassword, CreatedUser, DisabledUser, ResetPassword
from gpusched.protocol.rest.access import User as UserData
from gpusched.protocol.rest.jobs import Page
from tenants.auth import passwords
from tenants.auth.identity import Identity, identity
from tenants.auth.login_throttle import ThrottledLogin
from tenants.people import users

_FILTERS = {
    "active": "true or false: enabled or disabled accounts",
    "kind": "`person` or `service` (of a program)",
    **PAGED,
}


class NewUser(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`password` null: a one-time password is generated. `login` sso: none; the first login of this name through the
    identity provider gets the account."""

    username: str
    email: str = ""
    is_admin: bool = False
    login: Literal["password", "sso"] = "password"
    password: str | None = None


class UserChanges(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The fields to change; absent ones stay."""

    email: str | msgspec.UnsetType = msgspec.UNSET
    is_admin: bool | msgspec.UnsetType = msgspec.UNSET


class PasswordReset(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`password` null: a one-time password is generated. `keep_tokens`: the user's tokens stay valid."""

    password: str | None = None
    keep_tokens: bool = False


class PasswordChange(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`revoke_tokens`: also revokes all your tokens, including the one in use."""

    old_password: str
    new_password: str
    revoke_tokens: bool = False


class Users(APIView):
    @documented(
        "List the accounts", tag="users", who="admin", answer=Page[UserData], parameters=_FILTERS,
        refusals=(400, 401, 403),
    )  # fmt: skip
    def get(self, request: Request) -> Response:
        """In order of creation."""
        identity(request).require_admin()
        query = read_query(request)
        kind, limit = query.get("kind"), page_limit(query)
        if kind not in (None, "person", "service"):
            raise invalid([FieldError("kind", "invalid_value", "must be person or service")])
        active = is_true(query, "active") if "active" in query else None
        rows = users.list_users(active=active, kind=kind, after=cursor_number(query, "users"), limit=limit)
        ids = [row.pop("id") for row in rows]
        cursor = encode_cursor("users", ids[-1]) if len(ids) == limit else None
        return Response({"items": rows, "next_cursor": cursor})

    @documented(
        "Create the account of a person", tag="users", who="admin", body=NewUser, answer=CreatedUser, status=201,
        refusals=(400, 401, 403, 409),
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """`username`: letters, digits and `@ . + - _`. Without a `password` the answer has a `one_time_password`, shown
        only once: it is valid for one login within 7 days, which must set a new one. `login`: `password`, or `sso` for
        an account without one, which the first login of that name through the identity provider gets."""
        _require_admin_slowly(request)
        fields = read_body(request, NewUser)
        account = users.NewAccount(
            fields.username, fields.email, fields.is_admin, fields.password, has_password=fields.login == "password"
        )
        user, one_time = users.create(account)
        # The password of a dry run is never valid.
        visible = None if is_dry_run(request) else one_time
        return Response({**users.represent(user), "one_time_password": visible}, status=201)


class OneUser(APIView):
    @documented("Read an account", tag="users", who="admin", answer=UserData)
    def get(self, request: Request, username: str) -> Response:
        """With its tenants and roles."""
        identity(request).require_admin()
        return Response(users.represent(users.find(username)))

    @documented(
        "Change an account", tag="users", who="admin", body=UserChanges, answer=UserData,
        refusals=(400, 401, 403, 404, 409),
    )  # fmt: skip
    def patch(self, request: Request, username: str) -> Response:
        """`email`, or `is_admin`. The last admin cannot change (409 `last_admin`)."""
        identity(request).require_admin()
        user = users.find(username)
        fields = msgspec.structs.asdict(read_body(request, UserChanges))
        users.change(user, {name: value for name, value in fields.items() if value is not msgspec.UNSET})
        return Response(users.represent(users.find(username)))


class Disable(APIView):
    @documented("Disable an account", tag="users", who="admin", answer=DisabledUser, refusals=(400, 401, 403, 404, 409))
    def post(self, request: Request, username: str) -> Response:
        """Its logins, sessions and tokens are refused until it is enabled. Its jobs continue. Repeating it changes
        nothing. The last admin cannot be disabled (409 `last_admin`)."""
        identity(request).require_admin()
        without_owner = users.disable(users.find(username))
        return Response({**users.represent(users.find(username)), "tenants_without_owner": without_owner})


class Enable(APIView):
    @documented("Enable an account", tag="users", who="admin", answer=UserData)
    def post(self, request: Request, username: str) -> Response:
        """Its password, and sessions and tokens that have not expired, are valid again. Repeating it changes
        nothing."""
        identity(request).require_admin()
        users.enable(users.find(username))
        return Response(users.represent(users.find(username)))


class ResetThePassword(APIView):
    @documented(
        "Reset the password of another user", tag="users", who="admin", body=PasswordReset, answer=ResetPassword,
        refusals=(400, 401, 403, 404, 409),
    )  # fmt: skip
    def post(self, request: Request, username: str) -> Response:
        """Without a `password` the answer has a `one_time_password`, shown only once: it is valid for one login within
        7 days, which must set a new one. Ends the user's sessions and revokes the user's tokens, unless `keep_tokens`;
        tokens of programs stay. 409 `no_password_login` for an account without password login, 409 `own_account` for
        your own: `PUT /me/password`."""
        caller = _require_admin_slowly(request)
        fields = read_body(request, PasswordReset)
        user = users.find(username)
        if user.pk == caller.user_id:
            step = "change it with the old password: PUT /api/v1/me/password, gpusched user change-password"
            raise Problem(409, "own_account", "this is your own password", next_step=step)
        one_time, revoked = users.reset_password(user, fields.password, keep_tokens=fields.keep_tokens)
        visible = None if is_dry_run(request) else one_time
        return Response({"username": username, "one_time_password": visible, "revoked_tokens": revoked})


class OwnPassword(APIView):
    @documented(
        "Change your own password", tag="users", who="anybody", body=PasswordChange, answer=ChangedPassword,
        parameters={"dry_run": "true: check both passwords and change nothing"}, refusals=(400, 401, 403, 409, 429),
    )  # fmt: skip
    def put(self, request: Request) -> Response:
        """Needs the old one; attempts count like logins (429). Ends your other sessions; your tokens stay, unless
        `revoke_tokens`. If the new password is already yours, nothing changes."""
        caller = identity(request)
        fields = read_body(request, PasswordChange)
        user = User.objects.get(pk=caller.user_id)
        users.require_password_login(user)
        if "\x00" in fields.old_password:
            raise invalid([FieldError("old_password", "invalid_character", "must not contain a NUL character")])
        answer: dict[str, Any] = {"username": user.username, "status": "unchanged", "revoked_tokens": 0}
        if ThrottledLogin().verify(request._request, user.username, fields.old_password) is None:
            if user.check_password(fields.new_password):
                return Response(answer)
            raise users.wrong_password()
        if fields.new_password == fields.old_password:
            raise invalid([FieldError("new_password", "unchanged", "must be another one")])
        user.refresh_from_db()
        passwords.require_good(fields.new_password, user, "new_password")
        if is_dry_run(request):
            return Response({**answer, "status": "would_be_changed"})
        old, new = fields.old_password, fields.new_password
        revoked = users.change_own_password(user, old, new, revoke=fields.revoke_tokens)
        if caller.token_prefix is None:
            update_session_auth_hash(request._request, user)  # keeps this session
        return Response({**answer, "status": "changed", "revoked_tokens": revoked})


def _require_admin_slowly(request: Request) -> Identity:
    """Require an admin, and limit the requests per minute: hashing a password takes a fraction of a CPU second."""
    caller = identity(request)
    caller.require_admin()
    rate_limits.count_password(caller.via if caller.token_prefix else f"person {caller.user_id}")
    return caller
