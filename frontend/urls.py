"""URLs of the pages."""

from django.urls import URLPattern, path

from frontend import poll
from frontend.pages.calendar import view as calendar
from frontend.pages.endpoints import view as endpoints
from frontend.pages.fleet import view as cluster
from frontend.pages.health import view as health
from frontend.pages.job import elements
from frontend.pages.job import view as job
from frontend.pages.jobs import view as jobs
from frontend.pages.join import view as join
from frontend.pages.my_work import view as mine
from frontend.pages.node import gpu_panel
from frontend.pages.node import view as node
from frontend.pages.notices import view as notices
from frontend.pages.notifications import view as notifications
from frontend.pages.overview import view as overview
from frontend.pages.search import view as search
from frontend.pages.submit import view as submit
from frontend.pages.tenants import quota
from frontend.pages.tenants import view as tenants
from frontend.pages.tokens import view as tokens
from frontend.pages.usage import view as usage
from frontend.ui import page

urlpatterns: list[URLPattern] = [
    path("login/", page.login, name="login"),
    path("logout/", page.logout, name="logout"),
    path("", mine.home, name="home"),
    path("overview/", overview.overview, name="overview"),
    path("mine/", mine.my_work, name="mine"),
    path("fleet/", cluster.fleet, name="fleet"),
    path("queue/", jobs.queue, name="queue"),
    path("queue/estimates/", jobs.estimates, name="queue-estimates"),
    path("jobs/", jobs.jobs, name="jobs"),
    path("jobs/act/", jobs.act_on_several, name="jobs-act"),
    path("jobs/loss/", jobs.loss_of_several, name="jobs-loss"),
    path("jobs/<id:job_id>/", job.job, name="job"),
    path("jobs/<id:job_id>/actions/", job.actions, name="job-actions"),
    path("jobs/<id:job_id>/foreseen/", job.estimate, name="job-foreseen"),
    path("jobs/<id:job_id>/readings/", job.gpu_readings, name="job-readings"),
    path("jobs/<id:job_id>/log-hits/", job.log_hits, name="job-log-hits"),
    path("jobs/<id:job_id>/cost/", job.cost, name="job-cost"),
    path("jobs/<id:job_id>/elements/<str:verb>/", elements.act_on_elements, name="elements-act"),
    path("jobs/<id:job_id>/extend/preview/", job.extend_preview, name="job-extend-preview"),
    path("jobs/<id:job_id>/<str:verb>/", job.act_on, name="job-act"),
    path("nodes/", cluster.nodes, name="nodes"),
    path("nodes/<str:name>/", node.node, name="node"),
    path("nodes/<str:name>/marks/<str:kind>/", node.set_marks, name="node-marks"),
    path("nodes/<str:name>/remove/", node.remove, name="node-remove"),
    path("nodes/<str:name>/<str:verb>/", node.set_intent, name="node-act"),
    path("nodes/<str:name>/gpus/<id:device_id>/actions/", gpu_panel.gpu_actions, name="gpu-actions"),
    path("nodes/<str:name>/gpus/<id:device_id>/<str:verb>/", node.act_on_gpu, name="gpu-act"),
    path("join/", join.join, name="join"),
    path("join/<id:token_id>/", join.arrivals, name="join-arrivals"),
    path("join/<id:token_id>/revoke/", join.revoke, name="join-revoke"),
    path("tenants/", tenants.tenants, name="tenants"),
    path("tenants/<str:name>/", tenants.tenant, name="tenant"),
    path("tenants/<str:name>/quota/", quota.quota, name="tenant-quota"),
    path("endpoints/", endpoints.endpoints, name="endpoints"),
    path("endpoints/<str:tenant>/<str:name>/", endpoints.endpoint, name="endpoint"),
    path("endpoints/<str:tenant>/<str:name>/drain/", endpoints.drain, name="endpoint-drain"),
    path("endpoints/<str:tenant>/<str:name>/prewarming/", endpoints.switch_prewarming, name="endpoint-prewarming"),
    path("endpoints/<str:tenant>/<str:name>/limits/", endpoints.change_limits, name="endpoint-limits"),
    path("cluster/health/", health.health, name="health"),
    path("calendar/", calendar.calendar, name="calendar"),
    path("calendar/book/", calendar.book, name="calendar-book"),
    path("calendar/<id:reservation_id>/<str:verb>/", calendar.end, name="calendar-end"),
    path("usage/", usage.usage, name="usage"),
    path("submit/", submit.submit, name="submit"),
    path("submit/preview/", submit.preview, name="submit-preview"),
    path("live/", poll.poll, name="live-poll"),
    path("notices/seen/", notices.mark_read, name="notices-seen"),
    path("search/", search.search, name="search"),
    path("notifications/", notifications.notifications, name="notifications"),
    path("notifications/<id:route_id>/<str:verb>/", notifications.act, name="notification-act"),
    path("notifications/deliveries/<id:delivery_id>/replay/", notifications.replay, name="notification-replay"),
    path("tokens/", tokens.tokens, name="tokens"),
    path("tokens/<id:token_id>/revoke/", tokens.revoke, name="token-revoke"),
]
