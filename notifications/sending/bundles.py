"""Send a claimed bundle through a sending process, and record the results."""

import time

from cryptography.fernet import InvalidToken

from notifications import claims, messages, signing, targets
from notifications.claims import Bundle, Claimed
from notifications.messages import Rendered
from notifications.models import Channel
from notifications.sending.child import SendingProcess
from notifications.sending.message import Message, Result

_OTHER_KEY = "its target was sealed with another SECRET_KEY; set it again"


def send(bundle: Bundle, process: SendingProcess) -> int:
    """Send the deliveries of a bundle and record how it went. Return how many were sent."""
    try:
        target = targets.unseal(bundle.sealed_target)
        secrets = [targets.unseal(sealed) for sealed in bundle.sealed_secrets]
    except InvalidToken:
        claims.record_failed(bundle.route_id, bundle.deliveries, _OTHER_KEY)
        return 0
    rendered = messages.render(bundle.deliveries)
    if bundle.channel == Channel.WEBHOOK:
        return _in_a_row(bundle, target, secrets, rendered, process)
    title, text = messages.together(rendered)
    result = process.send(Message(target=target, title=title, body=text))
    return _record(bundle, bundle.deliveries, result)


def _in_a_row(
    bundle: Bundle, target: str, secrets: list[str], rendered: list[Rendered], process: SendingProcess
) -> int:
    """Send requests until one fails or the time is over; the rest return to the queue."""
    began, sent = time.monotonic(), 0
    for number, (delivery, text) in enumerate(zip(bundle.deliveries, rendered, strict=True)):
        if time.monotonic() - began > claims.BUNDLE_SECONDS:
            claims.release(bundle.deliveries[number:])
            break
        body = messages.webhook_body(text)
        headers = signing.signed_headers(delivery.uid, int(time.time()), body, secrets)
        result = process.send(Message(target=target, body=body, headers=headers, is_webhook=True))
        sent += _record(bundle, (delivery,), result)
        if not result.is_sent:
            claims.release(bundle.deliveries[number + 1 :])
            break
    return sent


def _record(bundle: Bundle, deliveries: tuple[Claimed, ...], result: Result) -> int:
    if result.is_sent:
        claims.record_sent(bundle.route_id, deliveries, result.status, result.error)
        return len(deliveries)
    claims.record_failed(
        bundle.route_id, deliveries, result.error, result.status, is_gone=result.is_gone, retry_after=result.retry_after
    )
    return 0
