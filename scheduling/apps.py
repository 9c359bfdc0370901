"""Tells Django of this app, and the submit path of what the scheduler knows (jobs/submit/admission.py)."""

from django.apps import AppConfig


class SchedulingConfig(AppConfig):
    name = "scheduling"

    def ready(self) -> None:
        from jobs.submit import admission
        from scheduling.admission import problem_if_impossible
        from scheduling.whatif.edit_effects import quota_effect
        from scheduling.whatif.simulate_submit import simulate
        from tenants import effects

        admission.register(problem_if_impossible)
        admission.register_preview(simulate)
        effects.register(quota_effect)
