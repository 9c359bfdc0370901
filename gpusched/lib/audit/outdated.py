"""Forms of Django admin that reject an edit of an object that was changed after its page was loaded. A form sends all
its fields, so it would restore the values of its page: an owner's role, a disabled account, a revoked token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib.admin.options import BaseModelAdmin
from django.core.exceptions import ObjectDoesNotExist, ValidationError
from django.db.models import Model
from django.forms import CharField, HiddenInput, ModelForm
from django.forms.models import model_to_dict
from django.http import HttpRequest
from django.utils.crypto import salted_hmac


class CurrentForm(ModelForm):  # type: ignore[type-arg]
    """`seen`: a digest of the values that the page showed. A script that sends none is not checked."""

    seen = CharField(widget=HiddenInput, required=False, label="")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Not those that a formset adds, such as the key of the row.
        self.compared = [name for name, field in self.fields.items() if not field.disabled]
        if self.instance.pk is not None:
            self.fields["seen"].initial = self._digest(self.initial)

    @property
    def changed_data(self) -> list[str]:
        """Return the changed fields of the object."""
        return [name for name in super().changed_data if name != "seen"]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if self.instance.pk is not None and cleaned.get("seen") and cleaned["seen"] != self._current_digest():
            happened = f"this {self.instance._meta.verbose_name} was changed meanwhile"
            raise ValidationError(f"Not saved: {happened}. Reload this page and repeat your edit.")
        return cleaned

    def _current_digest(self) -> str:
        """Lock the row until the admin has saved, as both are in one transaction, and read it again."""
        rows = self.instance._meta.base_manager.select_for_update(of=("self",), no_key=True)
        try:
            self.instance.refresh_from_db(from_queryset=rows)
        except ObjectDoesNotExist:
            return ""
        return self._digest(model_to_dict(self.instance, self.compared))

    def _digest(self, values: Mapping[str, Any]) -> str:
        shown = [(name, self.fields[name].prepare_value(values.get(name))) for name in self.compared]
        plain = [(name, sorted(map(str, value)) if isinstance(value, list) else str(value)) for name, value in shown]
        return salted_hmac("gpusched.admin.seen", str(plain)).hexdigest()


class CurrentFields(BaseModelAdmin):  # type: ignore[type-arg]
    """Send `seen` with the other fields of a CurrentForm."""

    form = CurrentForm

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> Any:
        (title, first), *others = super().get_fieldsets(request, obj)
        names = [name for name in first["fields"] if name != "seen"]
        if self.has_change_permission(request, obj):
            names.append("seen")
        return [(title, {**first, "fields": names}), *others]
