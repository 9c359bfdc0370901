"""A client of an endpoint for locust: it sends one request after the other, and waits for the result of each."""

import json
import os

from locust import FastHttpUser, task

HEADERS = {"Authorization": f"Bearer {os.environ['TOKEN']}", "Content-Type": "application/json"}
BODY = json.dumps({"endpoint": os.environ["ENDPOINT"], "input": json.loads(os.environ["TASK_INPUT"])})


class EndpointUser(FastHttpUser):
    @task
    def infer(self) -> None:
        with self.client.post("/api/v1/tasks?wait=30", BODY, headers=HEADERS, catch_response=True) as response:
            if response.status_code != 201 or response.json()["items"][0]["state"] != "completed":
                response.failure(f"{response.status_code}: {response.text[:200]}")
