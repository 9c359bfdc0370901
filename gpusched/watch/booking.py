"""Book a soft reservation for a match. This is all that the control plane learns: the rule's name and its `reserve`."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import httpx
import msgspec

from gpusched.client.config import Config
from gpusched.client.errors import GpuschedError
from gpusched.client.transport import wire
from gpusched.protocol.addresses import Addresses
from gpusched.watch.rules import Rule

_PATH = "/api/v1/reservations"


class Booked(msgspec.Struct, kw_only=True):
    """The part of the answer that is reported."""

    id: int
    state: str = ""
    problem: str = ""


class StartHasPassed(Exception):
    """The control plane refused it: the time from which to reserve has passed by its clock."""


class NotSent(Exception):
    """The control plane could not be reached, was too busy, or its answer was lost: try again with the same key."""


def body(rule: Rule, confidence: float, now: datetime, default_tenant: str | None) -> dict[str, Any]:
    """Return the request: never a text that was observed."""
    wanted = rule.reserve
    # By the clock of the server, which may be ahead of this one, or reached only at a later try.
    times: dict[str, Any] = {"for_seconds": round(wanted.for_minutes * 60)}
    if wanted.in_minutes:
        times["from"] = (now + timedelta(minutes=wanted.in_minutes)).isoformat()
    shape = {
        "gpu_model": wanted.gpu_model,
        "gpu_memory_mb": wanted.gpu_memory_mb,
        "tenant": wanted.tenant or default_tenant,
    }
    return {
        "gpus": wanted.gpus,
        "node_selector": wanted.node_selector,
        "one_node": wanted.one_node,
        **times,
        "kind": "soft",
        "source": "agent",
        "confidence": round(confidence, 3),
        "note": f"watch: {rule.name}",
        **{name: value for name, value in shape.items() if value is not None},
    }


class ControlPlane:
    """The control plane of a config. `config` has its URL and the token."""

    def __init__(self, config: Config) -> None:
        self._addresses = Addresses(config.url)
        # Neither a proxy of the environment nor a redirect may add another address.
        self._http = wire.client(httpx.Client, config, trust_env=False, follow_redirects=False)
        self.default_tenant = config.tenant

    def book(self, request: Mapping[str, Any], key: str) -> Booked:
        """Book it once, however often it is called with the key. Raise NotSent, or, if it is refused, StartHasPassed or
        GpuschedError."""
        failures = []
        for _ in self._addresses.all:
            address = self._addresses.current
            try:
                return self._book_at(address, request, key)
            except NotSent as error:
                self._addresses.move_on(address)
                failures.append(str(error))
        raise NotSent("; ".join(failures))

    def _book_at(self, address: str, request: Mapping[str, Any], key: str) -> Booked:
        try:
            response = self._http.post(address + _PATH, json=dict(request), headers={"Idempotency-Key": key})
        except httpx.HTTPError as error:
            raise NotSent(f"{address} does not answer: {error}") from error
        if response.status_code in (429, 502, 503, 504):
            raise NotSent(f"{address} answered {response.status_code}")
        if response.is_success:
            try:
                return msgspec.json.decode(response.content, type=Booked)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                # A proxy's page, or an answer that was cut, perhaps after the booking: the key makes a retry harmless.
                raise NotSent(f"{address} answered with something else than a reservation ({error})") from error
        try:
            problem = response.json()
            detail, fields = str(problem["detail"]), [error["field"] for error in problem.get("errors", ())]
        except (ValueError, LookupError, TypeError, AttributeError):
            detail, fields = f"the control plane answered {response.status_code}", []
        # Too late a start is refused when the rules are read.
        if fields == ["from"]:
            raise StartHasPassed(detail)
        raise GpuschedError(detail, status=response.status_code)

    def close(self) -> None:
        self._http.close()
