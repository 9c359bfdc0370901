"""The agent's HTTP clients, with the certificates of the node. For logs, and for messages where no WebSocket is
possible."""

import ssl
from typing import Any

import httpx

from gpusched import proxies, tls
from gpusched.protocol.addresses import is_local

_SECONDS = 10.0
_LIMITS = httpx.Limits(max_connections=8, max_keepalive_connections=8)


def blocking(url: str, ca_file: str, certificate_file: str) -> httpx.Client:
    """Return a client for one request. Raises TlsFileError or ProxyError."""
    verify = tls.verify(url, ca_file, certificate_file)
    is_remote = not is_local(url)
    with proxies.usable(is_remote):
        return httpx.Client(timeout=_SECONDS, verify=verify, trust_env=is_remote)


class HttpClient(httpx.AsyncClient):
    """A client that reads the files of certificates again after a failure: a certificate is replaced before it expires,
    and the agent runs for months. Its requests fail with httpx's errors alone. Raises TlsFileError or ProxyError."""

    def __init__(self, url: str, ca_file: str, certificate_file: str) -> None:
        self._files = ca_file, certificate_file
        self._tls = tls.verify(url, *self._files)
        is_remote = not is_local(url)
        with proxies.usable(is_remote):
            super().__init__(timeout=_SECONDS, limits=_LIMITS, verify=self._tls, trust_env=is_remote)

    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        try:
            return await super().send(request, **options)
        except (httpx.TransportError, OSError) as error:
            if isinstance(self._tls, ssl.SSLContext):
                tls.reload(self._tls, *self._files)
            if isinstance(error, OSError):  # httpx lets errors of TLS after the handshake through
                raise httpx.ReadError(str(error), request=request) from error
            raise
