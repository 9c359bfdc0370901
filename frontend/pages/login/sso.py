"""Single sign-on by OpenID Connect. Loaded only if configured.

django-allauth keeps the state and exchanges the code. This module checks that the ID token is for this login; allauth's
own pages and rules are not used."""

import base64
import hashlib
import logging
from functools import cached_property
from typing import Any

import jwt
from allauth.core.exceptions import ImmediateHttpResponse
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter, get_adapter
from allauth.socialaccount.providers.oauth2.client import OAuth2Error
from allauth.socialaccount.providers.oauth2.views import OAuth2CallbackView
from allauth.socialaccount.providers.openid_connect.provider import OpenIDConnectProvider
from allauth.socialaccount.providers.openid_connect.views import OpenIDConnectOAuth2Adapter
from allauth.utils import build_absolute_uri
from django.contrib import auth
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from requests import RequestException

from frontend.ui.errors import page_error
from gpusched.lib.api.problems import Problem
from tenants.auth import sso

logger = logging.getLogger(__name__)
PROVIDER = "sso"
# Limits how long a removed group membership stays valid, as roles are read at login.
SESSION_SECONDS = 12 * 3600
# Asymmetric only: with symmetric keys, a reader of the client's secret could forge ID tokens.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
LEEWAY_SECONDS = 30


class Provider(OpenIDConnectProvider):  # type: ignore[misc]
    """OpenID Connect with PKCE and a nonce derived from the verifier."""

    def get_pkce_params(self) -> dict[str, str]:
        params: dict[str, str] = super().get_pkce_params()
        return {**params, "nonce": _nonce(params["code_verifier"])}

    def extract_uid(self, data: dict[str, Any]) -> str:
        """Return a unique id of issuer and subject, as subjects are unique only within a provider."""
        claims = data["id_token"]
        return hashlib.sha256(f"{claims['iss']}\n{claims['sub']}".encode()).hexdigest()

    def get_oauth2_adapter(self, request: HttpRequest) -> "Exchange":
        return Exchange(request, PROVIDER)


class Exchange(OpenIDConnectOAuth2Adapter):  # type: ignore[misc]
    """The provider's endpoints and keys, and the validation of its answer."""

    code_verifier: str | None

    @cached_property
    def openid_config(self) -> dict[str, Any]:
        return self._get(self.get_provider().server_url)

    def get_provider(self) -> Provider:
        return Provider(self.request, get_adapter().get_app(self.request, provider=PROVIDER))

    def get_callback_url(self, request: HttpRequest, app: Any) -> str:
        return str(build_absolute_uri(request, reverse("sso-callback")))

    def get_access_token_data(self, request: HttpRequest, app: Any, client: Any, pkce_code_verifier: Any = None) -> Any:
        """Keep the verifier of this login for the check of the nonce."""
        self.code_verifier = pkce_code_verifier
        return super().get_access_token_data(request, app, client, pkce_code_verifier)

    def complete_login(self, request: HttpRequest, app: Any, token: Any, **kwargs: Any) -> Any:
        claims = self._verified(kwargs["response"].get("id_token"), app.client_id)
        if "userinfo_endpoint" in self.openid_config:
            userinfo = self._get(self.openid_config["userinfo_endpoint"], Authorization=f"Bearer {token.token}")
            if userinfo.get("sub") != claims["sub"]:
                raise OAuth2Error("userinfo belongs to another user")
            claims = {**userinfo, **claims}
        # One key, so that allauth does not choose between sources.
        return self.get_provider().sociallogin_from_response(request, {"id_token": sso.readable(claims)})

    def _verified(self, text: object, client_id: str) -> dict[str, Any]:
        """Return the claims of an ID token, verified for this provider, client and login."""
        if not isinstance(text, str):
            raise OAuth2Error("no id_token")
        try:
            key = self._key(jwt.get_unverified_header(text).get("kid"))
            claims: dict[str, Any] = jwt.decode(
                text, key=key, algorithms=ALGORITHMS, audience=client_id, issuer=self.openid_config["issuer"],
                leeway=LEEWAY_SECONDS, options={"require": ["exp", "iat", "iss", "aud", "sub", "nonce"]},
            )  # fmt: skip
        except (jwt.PyJWTError, TypeError, ValueError) as error:
            raise OAuth2Error(f"id_token: {error}") from error
        if not self.code_verifier or claims["nonce"] != _nonce(self.code_verifier):
            raise OAuth2Error("id_token: of another login")
        if isinstance(claims["aud"], list) and len(claims["aud"]) > 1 and claims.get("azp") != client_id:
            raise OAuth2Error("id_token: made for another client")
        return claims

    def _key(self, name: object) -> Any:
        keys = jwt.PyJWKSet.from_dict(self._get(self.openid_config["jwks_uri"])).keys
        fitting = [key for key in keys if key.key_id == name]
        if len(fitting) != 1:
            raise OAuth2Error("id_token: signed by no key of the provider")
        return fitting[0]

    def _get(self, url: str, **headers: str) -> dict[str, Any]:
        with get_adapter().get_requests_session() as session:
            answer = session.get(url, headers=headers)
            answer.raise_for_status()
            content = answer.json()
        if not isinstance(content, dict):
            raise ValueError(f"{url} answers no JSON object")
        return content


class AccountAdapter(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Decide logins here, before allauth's own rules apply."""

    def pre_social_login(self, request: HttpRequest, sociallogin: Any) -> None:
        try:
            user = _sign_in(request, sociallogin)
        except Problem as problem:
            raise ImmediateHttpResponse(page_error(request, 403, problem)) from problem
        auth.login(request, user, backend="tenants.auth.login_throttle.ThrottledLogin")
        request.session.set_expiry(SESSION_SECONDS)
        raise ImmediateHttpResponse(redirect(sociallogin.state.get("next") or "/"))

    def on_authentication_error(
        self, request: HttpRequest, provider: Any, error: Any = None, exception: Any = None, extra_context: Any = None
    ) -> None:
        logger.warning("a login by OpenID Connect failed: %s %s", error, exception or "")
        raise ImmediateHttpResponse(_failed(request))


def _sign_in(request: HttpRequest, sociallogin: Any) -> User:
    """Return the account of the login, bound to it. Raises Problem."""
    person = sso.claims_of(sociallogin.account.extra_data["id_token"])
    if sociallogin.is_existing:
        return sso.sign_in(person, sociallogin.user)
    unsaved = sociallogin.user
    try:
        with transaction.atomic():  # until the binding is stored, no other login finds the account free
            sociallogin.user, sociallogin.email_addresses = sso.sign_in(person, None), []
            sociallogin.save(request, connect=True)
    except (Problem, IntegrityError):
        # Another login of the same person, such as in another tab, may have bound the account meanwhile.
        sociallogin.user = unsaved
        sociallogin.lookup()
        if not sociallogin.is_existing:
            raise
        return sso.sign_in(person, sociallogin.user)
    return sociallogin.user  # type: ignore[no-any-return]


def begin(request: HttpRequest) -> HttpResponse:
    """Redirect to the provider; `next` is the page to open after the login."""
    target = request.GET.get("next", "")
    if not url_has_allowed_host_and_scheme(target, {request.get_host()}, require_https=request.is_secure()):
        target = "/"
    try:
        response: HttpResponse = Exchange(request, PROVIDER).get_provider().redirect(request, "login", target)
        return response
    except (RequestException, KeyError, ValueError) as error:
        logger.warning("the OpenID Connect provider does not answer as one: %s", error)
        return _failed(request)


def callback(request: HttpRequest) -> HttpResponse:
    """Handle the return from the provider, with a code of this login."""
    try:
        response: HttpResponse = OAuth2CallbackView.adapter_view(Exchange(request, PROVIDER))(request)
        return response
    except (RequestException, KeyError, ValueError) as error:
        logger.warning("the OpenID Connect provider does not answer as one: %s", error)
        return _failed(request)


def _failed(request: HttpRequest) -> HttpResponse:
    step = "log in again; if it fails again, report the id below to an admin"
    return page_error(request, 403, Problem(403, "login_failed", "this login was not completed", next_step=step))


def _nonce(verifier: str) -> str:
    digest = hashlib.sha256(b"gpusched nonce " + verifier.encode()).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")
