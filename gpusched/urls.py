"""Every URL of the server in one place."""

import sys

from django.conf import settings
from django.contrib import admin
from django.core.exceptions import DisallowedHost, RequestDataTooBig
from django.http import HttpRequest, HttpResponse
from django.urls import include, path, register_converter
from drf_spectacular.views import SpectacularJSONAPIView, SpectacularSwaggerView

import jobs.api.archive
import jobs.api.arrays
import jobs.api.attempts
import jobs.api.bulk
import jobs.api.events
import jobs.api.jobs
import jobs.api.logs
import jobs.api.signals
import nodes.agents.api
import nodes.api.gpus
import nodes.api.idle_exemptions
import nodes.api.labels
import nodes.api.nodes
import nodes.api.samples
import notifications.api.deliveries
import notifications.api.routes
import notifications.api.webhooks
import scheduling.api.policy
import scheduling.api.queue
import scheduling.api.reservations
import scheduling.api.time_limit
import serving.api.endpoints
import serving.api.openai
import serving.api.tasks
import tenants.api.audit
import tenants.api.buckets
import tenants.api.budgets
import tenants.api.members
import tenants.api.secrets
import tenants.api.service_tokens
import tenants.api.tenants
import tenants.api.tokens
import tenants.api.usage
import tenants.api.users
from frontend.mcp.view import Mcp
from frontend.ui.errors import page_error, page_of_outage
from gpusched.lib.api.problems import Problem, database_unavailable, not_found, response_for, too_large, wants_problem
from gpusched.lib.db.outages import is_temporary, outcome, symptom
from scheduling.status.metrics import metrics


class IdConverter:
    """A database id. Longer numbers than a bigint match nothing."""

    regex = r"\d{1,18}"

    def to_python(self, value: str) -> int:
        return int(value)

    def to_url(self, value: int) -> str:
        return str(value)


register_converter(IdConverter, "id")

_JOB = "jobs/<id:job_id>"
_TENANT = "tenants/<str:name>"
_USER = "users/<path:username>"
_NODE = "nodes/<str:name>"
_RESERVATION = "reservations/<id:reservation_id>"

api = [
    path(pattern, view)
    for pattern, view in (
        # First the two that programs call all the time: Django tries one pattern after the other.
        ("jobs", jobs.api.jobs.Jobs.as_view()),
        ("tasks", serving.api.tasks.Tasks.as_view()),
        ("jobs/count", jobs.api.jobs.Count.as_view()),
        ("jobs/bulk", jobs.api.bulk.Bulk.as_view()),
        ("events", jobs.api.events.Events.as_view()),
        ("jobs/simulate", scheduling.api.queue.Simulate.as_view()),
        (_JOB, jobs.api.jobs.Job.as_view()),
        (f"{_JOB}/cancel", jobs.api.arrays.Cancel.as_view()),
        (f"{_JOB}/retry", jobs.api.arrays.Retry.as_view()),
        (f"{_JOB}/elements", jobs.api.arrays.Elements.as_view()),
        (f"{_JOB}/hold", jobs.api.jobs.Hold.as_view()),
        (f"{_JOB}/release", jobs.api.jobs.Release.as_view()),
        (f"{_JOB}/requeue", jobs.api.jobs.Requeue.as_view()),
        (f"{_JOB}/signal", jobs.api.signals.Signal.as_view()),
        (f"{_JOB}/extend", scheduling.api.time_limit.Extend.as_view()),
        (f"{_JOB}/explain", scheduling.api.queue.Explain.as_view()),
        (f"{_JOB}/events", jobs.api.jobs.Events.as_view()),
        (f"{_JOB}/attempts", jobs.api.attempts.Attempts.as_view()),
        (f"{_JOB}/logs", jobs.api.logs.Log.as_view()),
        ("tenants", tenants.api.tenants.Tenants.as_view()),
        (_TENANT, tenants.api.tenants.OneTenant.as_view()),
        (f"{_TENANT}/rename", tenants.api.tenants.Rename.as_view()),
        (f"{_TENANT}/archive", jobs.api.archive.Archive.as_view()),
        (f"{_TENANT}/unarchive", jobs.api.archive.Unarchive.as_view()),
        (f"{_TENANT}/members", tenants.api.members.Members.as_view()),
        (f"{_TENANT}/members/<path:username>", tenants.api.members.OneMember.as_view()),
        (f"{_TENANT}/quota", tenants.api.tenants.TenantQuota.as_view()),
        (f"{_TENANT}/usage", tenants.api.usage.TenantUsage.as_view()),
        (f"{_TENANT}/budget", tenants.api.budgets.TenantBudget.as_view()),
        (f"{_TENANT}/secrets", tenants.api.secrets.Secrets.as_view()),
        (f"{_TENANT}/secrets/<str:secret>", tenants.api.secrets.OneSecret.as_view()),
        (f"{_TENANT}/service-tokens", tenants.api.service_tokens.ServiceTokens.as_view()),
        (f"{_TENANT}/service-tokens/<id:token_id>", tenants.api.service_tokens.OneServiceToken.as_view()),
        ("rates", tenants.api.usage.Rates.as_view()),
        ("rates/<id:rate_id>", tenants.api.usage.OneRate.as_view()),
        ("audit", tenants.api.audit.Audit.as_view()),
        ("tokens", tenants.api.tokens.Tokens.as_view()),
        ("tokens/<id:token_id>", tenants.api.tokens.OneToken.as_view()),
        ("me", tenants.api.tokens.Me.as_view()),
        ("me/password", tenants.api.users.OwnPassword.as_view()),
        ("users", tenants.api.users.Users.as_view()),
        # Names from an identity provider may have a slash in them: the verbs come first.
        (f"{_USER}/disable", tenants.api.users.Disable.as_view()),
        (f"{_USER}/enable", tenants.api.users.Enable.as_view()),
        (f"{_USER}/reset-password", tenants.api.users.ResetThePassword.as_view()),
        (_USER, tenants.api.users.OneUser.as_view()),
        ("login", tenants.api.tokens.LogIn.as_view()),
        ("nodes", nodes.api.nodes.Nodes.as_view()),
        ("nodes/join-tokens", nodes.api.nodes.JoinTokens.as_view()),
        (_NODE, nodes.api.nodes.OneNode.as_view()),
        (f"{_NODE}/cordon", nodes.api.nodes.Cordon.as_view()),
        (f"{_NODE}/uncordon", nodes.api.nodes.Uncordon.as_view()),
        (f"{_NODE}/rotate-credential", nodes.api.nodes.RotateCredential.as_view()),
        (f"{_NODE}/drain", nodes.api.nodes.Drain.as_view()),
        (f"{_NODE}/labels", nodes.api.labels.Labels.as_view()),
        (f"{_NODE}/taints", nodes.api.labels.Taints.as_view()),
        ("gpus", nodes.api.nodes.Gpus.as_view()),
        ("gpus/<id:device_id>/quarantine", nodes.api.gpus.Quarantine.as_view()),
        ("gpus/<id:device_id>/clear", nodes.api.gpus.Clear.as_view()),
        ("gpus/<id:device_id>/retire", nodes.api.gpus.Retire.as_view()),
        ("gpus/<id:device_id>/samples", nodes.api.samples.Samples.as_view()),
        ("idle-exemptions", nodes.api.idle_exemptions.Exemptions.as_view()),
        ("idle-exemptions/<id:exemption_id>", nodes.api.idle_exemptions.OneExemption.as_view()),
        ("incidents", nodes.api.gpus.Incidents.as_view()),
        ("endpoints", serving.api.endpoints.Endpoints.as_view()),
        ("endpoints/<str:name>", serving.api.endpoints.OneEndpoint.as_view()),
        ("endpoints/<str:name>/drain", serving.api.endpoints.DrainEndpoint.as_view()),
        ("tasks/<id:task_id>", serving.api.tasks.OneTask.as_view()),
        ("tasks/<id:task_id>/result", serving.api.tasks.TaskResult.as_view()),
        ("tasks/<id:task_id>/cancel", serving.api.tasks.CancelTask.as_view()),
        ("buckets", tenants.api.buckets.Buckets.as_view()),
        ("buckets/<id:bucket_id>", tenants.api.buckets.OneBucket.as_view()),
        ("notifications/routes", notifications.api.routes.Routes.as_view()),
        ("notifications/routes/<id:route_id>", notifications.api.routes.OneRoute.as_view()),
        ("notifications/routes/<id:route_id>/test", notifications.api.routes.TestRoute.as_view()),
        ("notifications/deliveries", notifications.api.deliveries.Deliveries.as_view()),
        ("notifications/deliveries/<id:delivery_id>", notifications.api.deliveries.OneDelivery.as_view()),
        ("notifications/deliveries/<id:delivery_id>/replay", notifications.api.deliveries.ReplayDelivery.as_view()),
        ("webhooks", notifications.api.webhooks.Webhooks.as_view()),
        ("webhooks/<id:webhook_id>", notifications.api.webhooks.OneWebhook.as_view()),
        ("webhooks/<id:webhook_id>/test", notifications.api.webhooks.TestWebhook.as_view()),
        ("webhooks/<id:webhook_id>/rotate-secret", notifications.api.webhooks.RotateSecret.as_view()),
        ("reservations", scheduling.api.reservations.Reservations.as_view()),
        ("reservations/next-slot", scheduling.api.reservations.NextFreeSlot.as_view()),
        (_RESERVATION, scheduling.api.reservations.OneReservation.as_view()),
        (f"{_RESERVATION}/shorten", scheduling.api.reservations.ShortenReservation.as_view()),
        (f"{_RESERVATION}/cancel", scheduling.api.reservations.CancelReservation.as_view()),
        (f"{_RESERVATION}/renew", scheduling.api.reservations.RenewReservation.as_view()),
        ("queue", scheduling.api.queue.Queue.as_view()),
        ("queue/usage", scheduling.api.queue.Usage.as_view()),
        ("scheduling/shares", scheduling.api.queue.Shares.as_view()),
        ("scheduling/policy", scheduling.api.policy.SchedulingPolicy.as_view()),
        ("scheduling/policy/history", scheduling.api.policy.PolicyHistory.as_view()),
        ("scheduling/cycles", scheduling.api.queue.Cycles.as_view()),
        ("scheduling/cycles/<id:cycle_id>/replay", scheduling.api.queue.Replay.as_view()),
        ("cluster/status", scheduling.api.queue.ClusterStatus.as_view()),
        ("health", scheduling.api.queue.Health.as_view()),
        ("ready", scheduling.api.queue.Ready.as_view()),
    )
]

urlpatterns = [
    path("api/v1/", include(api)),
    path("api/v1/openapi.json", SpectacularJSONAPIView.as_view(), name="openapi"),
    path("api/v1/docs", SpectacularSwaggerView.as_view(url_name="openapi"), name="api-docs"),
    path("api/v1/metrics", metrics),
    path("v1/models", serving.api.openai.Models.as_view()),
    path("v1/models/<path:model>", serving.api.openai.OneModel.as_view()),
    path("v1/chat/completions", serving.api.openai.Completions.as_view()),
    path("v1/completions", serving.api.openai.Completions.as_view()),
    path("v1/embeddings", serving.api.openai.Completions.as_view()),
    path("v1/<path:rest>", serving.api.openai.unknown),
    path("mcp", Mcp.as_view()),
    path("health", scheduling.api.queue.Health.as_view()),
    path("ready", scheduling.api.queue.Ready.as_view()),
    path("metrics", metrics),
    path("agent/join", nodes.agents.api.join),
    path("agent/sync", nodes.agents.api.sync),
    path("agent/logs", nodes.agents.api.append_log),
    path("admin/", admin.site.urls),
    path("", include("frontend.urls")),
]


if settings.ENV.oidc_issuer:
    from frontend.pages.login import sso

    urlpatterns += [
        path("login/sso/", sso.begin, name="sso"),
        path("login/sso/callback/", sso.callback, name="sso-callback"),
    ]


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    if wants_problem(request):
        return response_for(not_found(f"address {request.path[:200]}"))
    return page_error(request, 404)


def handler500(request: HttpRequest) -> HttpResponse:
    """Answer every error that no other handler has answered: of views, of Django REST framework and of middleware.
    Django calls it while it handles the error."""
    error = sys.exception()
    if is_temporary(error):
        problem = database_unavailable(request, error)
        return response_for(problem) if wants_problem(request) else page_of_outage(request, symptom(error), problem)
    if wants_problem(request):
        outcome_text, next_step = outcome(request)
        detail = f"the server failed on this request{outcome_text}"
        step = f"report it with the request id; {next_step}" if outcome_text else "report it with the request id"
        return response_for(Problem(500, "internal_error", detail, next_step=step))
    return page_error(request, 500)


def handler400(request: HttpRequest, exception: Exception) -> HttpResponse:
    if isinstance(exception, DisallowedHost):
        step = "use another name of the server, or ask an admin to add this one to GPUSCHED_ALLOWED_HOSTS"
        problem = Problem(400, "bad_request", "the server does not accept the host name of this URL", next_step=step)
        return response_for(problem) if wants_problem(request) else page_error(request, 400, problem)
    if wants_problem(request) and isinstance(exception, RequestDataTooBig):
        return response_for(too_large())
    if wants_problem(request):
        return response_for(Problem(400, "bad_request", "the request is malformed", next_step="see /api/v1/docs"))
    return page_error(request, 400)


def handler403(request: HttpRequest, exception: Exception) -> HttpResponse:
    if wants_problem(request):
        return response_for(Problem(403, "not_permitted", "you may not do this", next_step="ask an admin"))
    return page_error(request, 403)
