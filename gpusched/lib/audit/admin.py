"""Django admin that records every write in the audit log, with the values before and after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Model, QuerySet
from django.forms import BaseFormSet, BaseModelForm
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from gpusched.lib.audit import log
from gpusched.lib.audit.outdated import CurrentFields


class ReadOnly(ModelAdmin):  # type: ignore[misc]
    """An admin page without editing."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


_SECRETS = ("password", "secret", "hash")


class Audited(CurrentFields, ModelAdmin):  # type: ignore[misc]
    """An admin page whose additions, changes and deletions are audited, also those of inlines."""

    def construct_change_message(
        self,
        request: HttpRequest,
        form: BaseModelForm[Model],
        formsets: Iterable[BaseFormSet[Any]] | None,
        add: bool = False,
    ) -> Any:
        """Record the changes. Django calls this for its own log once all is saved, in the same transaction."""
        _record(form, "add" if add else "change")
        for formset in formsets or ():
            deleted = {id(row) for row in getattr(formset, "deleted_objects", ())}
            added = {id(row) for row in getattr(formset, "new_objects", ())}
            for inner in formset.forms:
                if id(inner.instance) in deleted:
                    log.record("admin.delete", _subject(inner.instance), _initial(inner), None)
                else:
                    _record(inner, "add" if id(inner.instance) in added else "change")
        return super().construct_change_message(request, form, formsets, add)

    def log_deletions(self, request: HttpRequest, queryset: QuerySet[Model]) -> Any:
        """Record the rows. Django calls this before it deletes them."""
        for row in queryset:
            fields = {field.name: field.value_from_object(row) for field in row._meta.concrete_fields}
            log.record("admin.delete", _subject(row), _plain(fields), None)
        return super().log_deletions(request, queryset)


def _record(form: Any, verb: str) -> None:
    names = form.changed_data
    if names:
        after = _plain({name: form.cleaned_data.get(name) for name in names})
        # Without secrets, so that they always count as changed.
        previous = _plain({name: form.initial.get(name) for name in names if not _is_secret(name)})
        instance = getattr(form, "instance", None) or form.user
        log.record(f"admin.{verb}", _subject(instance), None if verb == "add" else previous, after)


def _initial(form: Any) -> dict[str, Any]:
    return _plain({name: form.initial.get(name) for name in form.fields if name in form.initial})


def _subject(instance: Model) -> str:
    return f"{instance._meta.model_name} {instance}"


def _plain(fields: dict[str, Any]) -> dict[str, Any]:
    """Convert the fields to JSON values, with secrets only by name."""
    return {name: _value(name, value) for name, value in fields.items()}


def _is_secret(name: str) -> bool:
    return any(word in name for word in _SECRETS)


def _value(name: str, value: Any) -> Any:
    if _is_secret(name):
        return "(not shown)"
    if isinstance(value, QuerySet | list | tuple | set):
        return sorted(str(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value if isinstance(value, dict) else str(value)
