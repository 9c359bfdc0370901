"""Publish the tables of this app as views for the SQL of other apps: without payloads and results."""

from gpusched.lib.db.views import published
from serving.models import Arrival, Endpoint, InferenceRequest, Prewarming, Replica, Use

VIEWS = {
    "serving_endpoints": published(Endpoint),
    "serving_arrivals": published(Arrival),
    "serving_prewarmings": published(Prewarming),
    "serving_replicas": published(Replica),
    "serving_tasks": published(InferenceRequest, without=("payload", "result")),
    "serving_uses": published(Use),
}
