"""Django app configuration."""

from django.apps import AppConfig, apps

from frontend.ui import field_names

NAMED = ("tenants", "jobs", "nodes", "scheduling")


class FrontendConfig(AppConfig):
    name = "frontend"

    def import_models(self) -> None:
        """Name the fields of all apps' models. This app loads last, and before Django builds forms."""
        super().import_models()
        for label in NAMED:
            field_names.name_fields(apps.get_app_config(label).models.values())
