"""The signals that can be sent to the processes of a job. Ends are not signals: they are requested, with a grace."""

from typing import Literal

import msgspec

SignalName = Literal["HUP", "INT", "QUIT", "USR1", "USR2"]
NAMES: tuple[SignalName, ...] = ("HUP", "INT", "QUIT", "USR1", "USR2")


class SignalRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`signal`: the signal for the first process of each running rank."""

    signal: SignalName
