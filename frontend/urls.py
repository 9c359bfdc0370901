"""Addresses of the pages."""

from django.urls import URLPattern, path

from frontend.views import cluster, entrance, job, join, mine, node, notices, overview, quota, submit, tenants, tokens

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
    path("jobs/<id:job_id>/readings/", job.gpu_readings, name="job-readings"),
    path("jobs/<id:job_id>/cost/", job.cost, name="job-cost"),
    path("jobs/<id:job_id>/<str:verb>/", job.act_on, name="job-act"),
    path("nodes/", cluster.nodes, name="nodes"),
    path("nodes/<str:name>/", node.node, name="node"),
    path("nodes/<str:name>/<str:verb>/", node.set_intent, name="node-act"),
    path("nodes/<str:name>/gpus/<id:device_id>/<str:verb>/", node.act_on_gpu, name="gpu-act"),
    path("join/", join.join, name="join"),
    path("join/<id:token_id>/", join.arrivals, name="join-arrivals"),
    path("join/<id:token_id>/revoke/", join.revoke, name="join-revoke"),
    path("tenants/", tenants.tenants, name="tenants"),
    path("tenants/<str:name>/", tenants.tenant, name="tenant"),
    path("tenants/<str:name>/quota/", quota.quota, name="tenant-quota"),
    path("submit/", submit.submit, name="submit"),
    path("submit/preview/", submit.preview, name="submit-preview"),
    path("notices/seen/", notices.seen, name="notices-seen"),
    path("tokens/", tokens.tokens, name="tokens"),
    path("tokens/<id:token_id>/revoke/", tokens.revoke, name="token-revoke"),
]
