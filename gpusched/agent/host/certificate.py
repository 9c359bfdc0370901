"""Read for how long the node's own certificate is valid: nothing else says so before the server refuses it."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_VERSION, _UTC_TIME = 0xA0, 0x17


def validity(file: Path) -> tuple[datetime, datetime]:
    """Return from when until when the first certificate in a PEM file is valid. Raises OSError or ValueError."""
    text = file.read_text(errors="replace")
    first, last = text.find(_BEGIN), text.find(_END)
    if not 0 <= first < last:
        raise ValueError(f"{file} has no certificate in PEM")
    try:
        return _validity(ssl.PEM_cert_to_DER_cert(text[first : last + len(_END)]))
    except (IndexError, ValueError) as error:
        raise ValueError(f"{file} has no certificate that can be read: {error}") from error


def _validity(certificate: bytes) -> tuple[datetime, datetime]:
    """Read a certificate in DER (RFC 5280, 4.1): version if any, serial number, signature, issuer, then validity."""
    signed = _elements(_elements(certificate)[0][1])[0][1]
    fields = [content for tag, content in _elements(signed) if tag != _VERSION]
    begin, end = (_time(*element) for element in _elements(fields[3]))
    return begin, end


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each element."""
    elements, at = [], 0
    while at < len(data):
        tag, size, start = data[at], data[at + 1], at + 2
        if size & 0x80:  # then the length of the length
            start += size & 0x7F
            size = int.from_bytes(data[at + 2 : start])
        at = start + size
        elements.append((tag, data[start:at]))
    return elements


def _time(tag: int, content: bytes) -> datetime:
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(content.decode(), form).replace(tzinfo=UTC)
