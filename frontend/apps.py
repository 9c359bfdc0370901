"""Tells Django of this app."""

from django.apps import AppConfig, apps

from frontend.ui import field_names

NAMED = ("tenants", "jobs", "nodes", "scheduling")


class FrontendConfig(AppConfig):
    name = "frontend"

    def import_models(self) -> None:
        """The last app of ours: the models of all are there, and no form is made of them yet."""
        super().import_models()
        for label in NAMED:
            field_names.name_fields(apps.get_app_config(label).models.values())
