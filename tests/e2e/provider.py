"""A small OpenID Connect provider on loopback: it logs in the configured person, and returns the configured false claims."""

import base64
import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

CLIENT, SECRET = "gpusched", "the client's secret, of more than 32 letters"
Lie = Callable[[dict[str, Any]], dict[str, Any]]


class Provider:
    """`person`: the claims of who is logged in there. `lie` changes an ID token's claims; `sign` makes a token of them."""

    def __init__(self) -> None:
        self.key, self.other_key = (rsa.generate_private_key(65537, 2048) for _ in range(2))
        self.person: dict[str, Any] = {}
        self.tell_truth()
        self._codes: dict[str, dict[str, str]] = {}
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if url.path == "/authorize":
                    self.send_response(302)
                    self.send_header("Location", provider.authorize(dict(parse_qsl(url.query))))
                    self.end_headers()
                    return
                self.answer(provider.documents().get(url.path))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                given = {name: values[0] for name, values in parse_qs(body).items()}
                self.answer(provider.token(given, self.headers.get("Authorization", "")))

            def answer(self, document: Any) -> None:
                text = json.dumps(document or {"error": "invalid_grant"}).encode()
                self.send_response(200 if document else 400)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def tell_truth(self) -> None:
        self.lie: Lie = lambda claims: claims
        self.sign: Callable[[dict[str, Any]], str | None] = self.signed

    def signed(self, claims: dict[str, Any]) -> str:
        return jwt.encode(claims, self.key, "RS256", headers={"kid": "1"})

    def documents(self) -> dict[str, Any]:
        public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return {
            "/.well-known/openid-configuration": {
                "issuer": self.url,
                "authorization_endpoint": f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "jwks_uri": f"{self.url}/keys",
                "token_endpoint_auth_methods_supported": ["client_secret_basic"],
            },
            "/keys": {"keys": [{**public, "kid": "1", "use": "sig", "alg": "RS256"}]},
        }

    def authorize(self, asked: dict[str, str]) -> str:
        assert (asked["client_id"], asked["response_type"]) == (CLIENT, "code")
        assert {"openid"} <= set(asked["scope"].split())
        code = secrets.token_hex(8)
        self._codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def token(self, given: dict[str, str], authorization: str) -> dict[str, Any] | None:
        asked = self._codes.pop(given.get("code", ""), None)  # once
        proof = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        if asked is None or authorization != f"Basic {proof}" or given["redirect_uri"] != asked["redirect_uri"]:
            return None
        challenge = base64.urlsafe_b64encode(hashlib.sha256(given["code_verifier"].encode()).digest())
        if challenge.decode().rstrip("=") != asked["code_challenge"]:
            return None
        now = int(time.time())
        claims = {"iss": self.url, "aud": CLIENT, "iat": now, "exp": now + 300, "nonce": asked["nonce"], **self.person}
        token = self.sign(self.lie(claims))
        return {"access_token": "x", "token_type": "Bearer", **({"id_token": token} if token else {})}
