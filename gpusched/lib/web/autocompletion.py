"""Autocompletion fields of Django admin that survive values which are no keys."""

from collections.abc import Sequence
from typing import Any

from django.contrib.admin.widgets import AutocompleteSelect
from django.http import HttpRequest


class KeySelect(AutocompleteSelect):
    """A field that shows only keys as chosen. Django's own looks for any value that was sent, and a form with another
    one, which it must show again with its errors, fails."""

    def optgroups(self, name: str, value: Sequence[str], attr: dict[str, Any] | None = None) -> Any:
        keys = [one for one in value if str(one).isascii() and str(one).isdecimal()]
        return super().optgroups(name, keys, attr)


class KeyFields:
    """Use such fields for the `autocomplete_fields` of an admin class; to be named before its base."""

    def formfield_for_foreignkey(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name in self.get_autocomplete_fields(request):  # type: ignore[attr-defined]
            kwargs.setdefault("widget", KeySelect(db_field, self.admin_site, using=kwargs.get("using")))  # type: ignore[attr-defined]
        return super().formfield_for_foreignkey(db_field, request, **kwargs)  # type: ignore[misc]
