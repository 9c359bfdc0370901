"""The signals that may be sent to the processes of a job. Ends are no signals: they are asked for, with a grace."""

from typing import Literal

import msgspec

SignalName = Literal["HUP", "INT", "QUIT", "USR1", "USR2"]
NAMES: tuple[SignalName, ...] = ("HUP", "INT", "QUIT", "USR1", "USR2")


class SignalRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`signal`: what to send to the first process of each rank that runs."""

    signal: SignalName
