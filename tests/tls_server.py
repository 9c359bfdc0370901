"""A TLS server that records what its clients send after the handshake, and certificates made for it."""

import datetime
import ipaddress
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_KEY_USAGES = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip
_DAY = datetime.timedelta(days=1)
_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"


class Authority:
    """A certificate authority; `file` is its certificate."""

    def __init__(self, directory: Path, name: str = "test authority") -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        usage = dict.fromkeys(_KEY_USAGES, False) | {"key_cert_sign": True, "crl_sign": True}
        certificate = (
            self._builder(self._name, self._key)
            .add_extension(x509.BasicConstraints(True, None), True)
            .add_extension(x509.KeyUsage(**usage), True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False)
        )
        self.file = directory / f"{name.replace(' ', '-')}.pem"
        self.file.write_bytes(certificate.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        name: str,
        address: str = "127.0.0.1",
        *,
        begin: datetime.timedelta = -_DAY,
        end: datetime.timedelta = _DAY,
    ) -> Path:
        """Return a file with a certificate for `name` and `address`, and its key. It is valid from now + `begin` until
        now + `end`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names = x509.SubjectAlternativeName([x509.DNSName(name), x509.IPAddress(ipaddress.ip_address(address))])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())  # Python 3.13 needs it
        builder = self._builder(subject, key, begin, end).add_extension(names, False).add_extension(issuer, False)
        certificate = builder.sign(self._key, hashes.SHA256())
        file = self.directory / f"{name}.pem"
        private = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        file.write_bytes(
            certificate.public_bytes(serialization.Encoding.PEM)
            + key.private_bytes(serialization.Encoding.PEM, *private)
        )
        return file

    def _builder(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePrivateKey,
        begin: datetime.timedelta = -_DAY,
        end: datetime.timedelta = _DAY,
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now + begin).not_valid_after(now + end)


class RecordingServer:
    """`with RecordingServer(file) as server:` accepts TLS connections; `received` is what clients sent, decrypted.
    `clients`: the authority whose certificates clients must have."""

    def __init__(self, certificate_file: Path, clients: Path | None = None) -> None:
        self.received = b""
        self.handshakes = 0
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate_file)
        if clients:
            self._context.load_verify_locations(clients)
            self._context.verify_mode = ssl.CERT_REQUIRED
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"

    def refuse_names(self, alert: ssl.AlertDescription) -> None:
        """Answer every handshake that names a server with this alert."""
        self._context.sni_callback = lambda *_: alert

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        client.settimeout(10)
        with suppress(OSError), client:
            self.handshakes += 1
            with self._context.wrap_socket(client, server_side=True) as secure:
                while data := secure.recv(65536):
                    self.received += data
                    if b"\r\n\r\n" in self.received:
                        secure.sendall(_ANSWER)
