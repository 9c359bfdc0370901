"""The answers of a mail server for each recipient. Apprise reports only that one was refused.

Without it, one address that no longer exists would repeat each message to all others for a day."""

import smtplib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

# From this code on, a refusal is for good (RFC 5321, 4.2.1).
_PERMANENT = 500


@dataclass
class Recipients:
    """`is_accepted`: by the server, for a recipient at least. `is_open`: another try may reach another one."""

    is_accepted: bool = False
    is_open: bool = False

    @property
    def is_over(self) -> bool:
        """Return whether some got the message, and all others never will."""
        return self.is_accepted and not self.is_open

    def refuse(self, answers: Mapping[str, tuple[int, Any]]) -> None:
        self.is_open |= any(code < _PERMANENT for code, _ in answers.values())


@contextmanager
def watched() -> Iterator[Recipients]:
    """Watch the mail that this process sends in the block."""
    recipients, plain = Recipients(), smtplib.SMTP.sendmail

    def sendmail(smtp: smtplib.SMTP, *args: Any, **options: Any) -> Any:
        try:
            refused = plain(smtp, *args, **options)
        except smtplib.SMTPRecipientsRefused as error:
            recipients.refuse(error.recipients)
            raise
        except smtplib.SMTPResponseException as error:
            recipients.refuse({"": (error.smtp_code, error.smtp_error)})
            raise
        except Exception:
            recipients.is_open = True
            raise
        recipients.is_accepted = True
        recipients.refuse(refused)
        return refused

    smtplib.SMTP.sendmail = sendmail  # type: ignore[method-assign,assignment]
    try:
        yield recipients
    finally:
        smtplib.SMTP.sendmail = plain  # type: ignore[method-assign]
