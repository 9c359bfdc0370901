"""Field labels in the admin: readable, with units, for all fields, without migrations."""

import re

import pytest
from django.apps import apps

from frontend.apps import NAMED
from frontend.ui.field_names import label as spoken
from scheduling.models import SchedulingPolicy
from tenants.models import Quota
from tests.factories import make_tenant, make_user
from tests.frontend.browsing import browser, text_of


@pytest.mark.parametrize(
    ("model", "name", "text"),
    [
        (Quota, "max_gpu_memory_mb", "GPU memory at most (MiB)"),
        (Quota, "max_gpus_per_user", "GPUs per user at most"),
        (SchedulingPolicy, "aging_points_per_minute", "aging points per minute"),
        (SchedulingPolicy, "thermal_threshold_celsius", "hot from (°C)"),
    ],
)
def test_field_label_follows_its_name(model, name, text):
    assert spoken(name) == model._meta.get_field(name).verbose_name == text


def test_field_labels_have_no_underscores():
    called = [
        f"{model.__name__}: {field.verbose_name}"
        for label in NAMED
        for model in apps.get_app_config(label).get_models()
        for field in model._meta.local_fields
    ]
    assert len(called) > 100
    assert [text for text in called if re.search(r"\b(gpus?|cpu|mb|uuid|milli|celsius)$|\b(gpus?|cpu|mb) ", text)] == []


@pytest.mark.django_db
def test_admin_shows_field_labels():
    tenant, admin = make_tenant("nlp"), browser(make_user(admin=True))
    assert "GPU memory at most (MiB)" in text_of(admin.get(f"/admin/tenants/tenant/{tenant.pk}/change/"))
    assert "Hot from (°C)" in text_of(admin.get("/admin/scheduling/schedulingpolicy/", follow=True))
