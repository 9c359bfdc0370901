"""Django admin for token buckets, by the rules of the API."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from gpusched.lib.api.problems import Problem
from gpusched.lib.audit.outdated import CurrentFields, CurrentForm
from gpusched.lib.web.autocompletion import KeyFields
from tenants import bucket_limits
from tenants.models import TokenBucket

_LIMITS = ("rate_per_second", "burst", "daily_budget")
_OF = ("tenant", "scope", "user", "limits")


class BucketForm(CurrentForm):
    """A form for a bucket. It validates by saving the bucket and rolling back."""

    class Meta:
        model = TokenBucket
        fields = (*_OF, *_LIMITS)

    def clean(self) -> dict[str, Any]:
        """Report what the API would refuse."""
        cleaned = super().clean() or self.cleaned_data
        if not self.errors:
            try:
                with transaction.atomic():
                    self.store("")
                    transaction.set_rollback(True)
            except Problem as problem:
                raise ValidationError(problem.detail) from problem
        return cleaned

    def store(self, actor: str) -> int:
        """Create or change the bucket, and return its id."""
        fields = self.cleaned_data
        limits = {name: fields[name] for name in _LIMITS}
        if self.instance.pk:
            bucket_limits.change(self.instance.pk, limits)
            return int(self.instance.pk)
        username = fields["user"] and fields["user"].username
        values = {"scope": fields["scope"], "user": username, "limits": fields["limits"], **limits}
        return bucket_limits.create(fields["tenant"], values, actor)


@admin.register(TokenBucket)
class BucketAdmin(CurrentFields, KeyFields, ModelAdmin):  # type: ignore[misc]
    form = BucketForm
    list_display = (*_OF, *_LIMITS, "created_by")
    list_filter = ("tenant", "limits")
    list_select_related = ("tenant", "user")
    autocomplete_fields = ("tenant", "user")

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        return _OF if obj else ()

    def save_model(self, request: HttpRequest, obj: TokenBucket, form: BucketForm, change: bool) -> None:
        obj.pk = form.store(request.user.get_username())
        obj.refresh_from_db()

    def delete_model(self, request: HttpRequest, obj: TokenBucket) -> None:
        bucket_limits.delete(obj.pk)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[TokenBucket]) -> None:
        for bucket in queryset:
            bucket_limits.delete(bucket.pk)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Show the buckets alone: their levels have no admin page, and their deletion needs no permission."""
        names = [str(bucket) for bucket in objs]
        return names, {TokenBucket._meta.verbose_name_plural: len(names)}, set(), []
