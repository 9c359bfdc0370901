"""JSON that people type into forms: texts that Python cannot decode, but that Django does not expect."""

import json
from typing import Any

from django.forms import BaseForm, JSONField


class _Decoder(json.JSONDecoder):
    """Report also a number of thousands of digits, and arrays that are nested too deeply, as invalid JSON."""

    def decode(self, s: str, *args: Any) -> Any:
        try:
            return super().decode(s, *args)
        except (ValueError, RecursionError) as error:
            raise json.JSONDecodeError("not JSON", "", 0) from error


def refuse_undecodable(form: BaseForm) -> None:
    """Let the fields of JSON refuse what Python cannot decode."""
    for field in form.fields.values():
        if isinstance(field, JSONField):
            field.decoder = _Decoder
