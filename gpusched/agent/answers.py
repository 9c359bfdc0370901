"""Decode answers of the control plane. Any other answer, such as a proxy's error page, becomes a sentence."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

T = TypeVar("T")


class NotTheServer(Exception):
    """The answer did not come from a gpusched control plane. The text is a sentence for the log or the terminal."""


def read(decode: Callable[[bytes | str], T], body: bytes | str, url: str) -> T:
    """Decode an answer of `url`. Raises NotTheServer."""
    try:
        return decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotTheServer(
            f"{url} did not answer like a gpusched server ({error}); "
            "check the address, and whether a proxy answers instead of the server"
        ) from error
