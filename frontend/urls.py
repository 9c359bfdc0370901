"""Addresses of the pages."""

from django.urls import URLPattern, path

from frontend.views import cluster, entrance, job, mine, overview, submit, tokens

urlpatterns: list[URLPattern] = [
    path("login/", entrance.login, name="login"),
    path("logout/", entrance.logout, name="logout"),
    path("", mine.home, name="home"),
    path("overview/", overview.overview, name="overview"),
    path("mine/", mine.my_work, name="mine"),
    path("fleet/", cluster.fleet, name="fleet"),
    path("queue/", overview.queue, name="queue"),
    path("jobs/", overview.jobs, name="jobs"),
    path("jobs/<id:job_id>/", job.job, name="job"),
    path("jobs/<id:job_id>/actions/", job.actions, name="job-actions"),
    path("jobs/<id:job_id>/foreseen/", job.foreseen, name="job-foreseen"),
    path("jobs/<id:job_id>/<str:verb>/", job.act_on, name="job-act"),
    path("nodes/", cluster.nodes, name="nodes"),
    path("nodes/intent/", cluster.set_intent, name="node-intent"),
    path("nodes/join-token/", cluster.join_token, name="join-token"),
    path("tenants/", cluster.tenants, name="tenants"),
    path("submit/", submit.submit, name="submit"),
    path("submit/preview/", submit.preview, name="submit-preview"),
    path("tokens/", tokens.tokens, name="tokens"),
    path("tokens/<id:token_id>/revoke/", tokens.revoke, name="token-revoke"),
]
