"""Tells Django of this app, and the submit path of what the scheduler knows (jobs/submit/admission.py)."""

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"

    def ready(self) -> None:
        from jobs.submit import admission
        from scheduling.admission import check_request
        from scheduling.whatif.edit_effects import quota_effect
        from scheduling.whatif.simulate_submit import simulate
        from tenants import effects

        admission.register(check_request)
        admission.register_preview(simulate)
        effects.register(quota_effect)
