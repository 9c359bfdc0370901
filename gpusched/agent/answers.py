"""Answers of the control plane, decoded. What else answers in its place, such as a proxy's page, becomes a sentence."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")


class NotTheServer(Exception):
    """What answered is no gpusched control plane, as a sentence for the log or the terminal."""


def read(decode: Callable[[bytes | str], T], body: bytes | str, url: str) -> T:
    """Decode an answer of `url`. Raises NotTheServer."""
    try:
        return decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotTheServer(
            f"{url} answers, but not as a gpusched server does ({error}); "
            "check the address, and whether a proxy answers in the server's place"
        ) from error
