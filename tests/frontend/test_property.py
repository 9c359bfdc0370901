"""State and deltas equal a new load after any changes of cluster and pages."""

import asyncio
import json
from contextlib import suppress

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from frontend.live import hub as hubs
from frontend.live import invalidation, loader, outbox
from gpusched.lib.api.problems import Problem
from gpusched.protocol.agent_messages import Reading
from gpusched.protocol.states import NodeIntent
from jobs.actions import job_actions
from nodes.health import cordon
from nodes.models import Device, Node
from tenants.tenancy import tenants as tenant_services
from tests.factories import identity_for, make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.page import Page, cookie_of, live_hub
from tests.frontend.test_live import fall_silent, write_log

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(600), pytest.mark.long]
ALL = ["overview", "nodes", "readings", "strip", "queue", "jobs", "tenants", "health", "mine", "notices"]
SECRET = "unspeakable"


class World:
    """Two tenants, two nodes and their jobs; each operation takes one number that chooses what it is done to."""

    def __init__(self) -> None:
        self.ours, self.theirs = make_tenant(), make_tenant(f"{SECRET}-{make_tenant().pk}")
        self.members = [make_member(self.ours), make_member(self.theirs, name=f"{SECRET}-{self.theirs.pk}")]
        self.agents = [make_node(gpus=2), make_node(gpus=4)]
        self.jobs: list[tuple[int, int]] = []
        for identity in (0, 1):
            self.submit(identity)

    def submit(self, n: int) -> None:
        identity = n % 2
        name = SECRET if identity else "ours"
        tenant = self.theirs if identity else self.ours
        wanted = {"gpu_count": n % 4, "priority": 100 + n % 7 * 100, "name": name}
        with suppress(Problem):  # more than all nodes have
            self.jobs.append((submit(self.members[identity], tenant, **wanted), identity))

    def act(self, n: int) -> None:
        job_id, identity = self.jobs[n % len(self.jobs)]
        verb = (job_actions.cancel, job_actions.hold, job_actions.release, job_actions.requeue)[n % 4]
        with suppress(Problem):  # not possible in the job's state
            verb(job_id, identity_for(self.members[identity]))

    def cycle(self, n: int) -> None:
        run_cycle()

    def start(self, n: int) -> None:
        for agent in self.agents:
            agent.start_all()

    def end(self, n: int) -> None:
        agent = self.agents[n % 2]
        if agent.held:
            agent.end(agent.held[n % len(agent.held)], exit_code=n % 2)

    def read(self, n: int) -> None:
        agent = self.agents[n % 2]
        agent.sync(readings=[Reading(uuid=d.uuid, utilisation_percent=n % 101) for d in agent.devices])

    def log(self, n: int) -> None:
        job_id, _ = self.jobs[n % len(self.jobs)]
        write_log(job_id, 1, b"x" * (n % 50 + 1))

    def intend(self, n: int) -> None:
        cordon.set_intent(self.agents[n % 2].name, list(NodeIntent)[n % 3], f"note {n}")

    def lose(self, n: int) -> None:
        fall_silent(self.agents[n % 2].name)
        run_cycle()

    def sicken(self, n: int) -> None:
        """Without a bell."""
        Device.objects.filter(node_id=self.agents[n % 2].id).update(health=("ok", "hot", "quarantined")[n % 3])

    def limit(self, n: int) -> None:
        tenant = (self.ours, self.theirs)[n % 2]
        tenant_services.change_quota(tenant.pk, {"max_gpus": n % 5 or None, "guaranteed_gpus": 0}, actor="test")


async def lose_connection(page: Page, n: int) -> None:
    await page.leave()
    await page.connect()


async def fall_asleep(page: Page, n: int) -> None:
    """Until the server has noticed."""
    page.answers = False
    received = page.kinds.count("alive")
    await page.until(
        lambda: page.kinds.count("alive") > received + (outbox.MAX_UNACKNOWLEDGED + 2) * hubs.ALIVE_PER_ANSWER
    )


async def wake_up(page: Page, n: int) -> None:
    page.answers = True


async def change_topics(page: Page, n: int) -> None:
    await page.want(*(topic for i, topic in enumerate(page.all_topics) if n >> i & 1))


async def settle(page: Page, n: int) -> None:
    """Waits until one topic is up to date, so that what happens next comes as a delta."""
    topic = page.all_topics[n % len(page.all_topics)]
    if page.answers and topic in page.topics:
        await page.shows(topic, page.visible)


async def ask_again(page: Page, n: int) -> None:
    await page.subscribe(page.all_topics[n % len(page.all_topics)])


OPERATIONS = [
    "submit",
    "submit",
    "act",
    "cycle",
    "cycle",
    "start",
    "end",
    "read",
    "log",
    "intend",
    "lose",
    "sicken",
    "limit",
]
ACCIDENTS = [
    settle,
    settle,
    settle,
    settle,
    settle,
    lose_connection,
    fall_asleep,
    fall_asleep,
    wake_up,
    change_topics,
    ask_again,
]
STEPS = st.lists(
    st.tuples(st.sampled_from([*OPERATIONS, *ACCIDENTS]), st.integers(0, 1000), st.booleans()), min_size=5, max_size=30
)


async def play(steps, world: World, viewers, monkeypatch) -> None:
    async with live_hub(monkeypatch):
        pages = []
        for user, topics, visible in viewers:
            page = Page(await sync_to_async(cookie_of)(user), list(topics))
            page.all_topics, page.visible, page.user_id = topics, visible, user.pk
            pages.append(await page.connect())
            await page.shows("queue", visible)
        for step, n, flag in steps:
            if isinstance(step, str):
                await sync_to_async(getattr(world, step))(n)
            else:
                await step(pages[flag], n)
        for page, (_, topics, visible) in zip(pages, viewers, strict=True):
            page.answers = True
            await page.want(*topics)
            for topic in topics:
                await page.shows(topic, visible)
        check_secrets(pages[0], {job_id for job_id, identity in world.jobs if identity})
        for page in pages:
            await page.leave()


def check_secrets(page: Page, secret_ids: set[int]) -> None:
    """A08: no word and no id of the other tenant's jobs in anything that was ever sent."""
    for text in page.heard:
        assert SECRET not in text
        assert not secret_ids & set(ids_in(json.loads(text)))


def ids_in(value, name=""):
    """The numbers that stand where the contract has job ids: elsewhere `jobs` is how many."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("example_id", "for_job"):
                yield inner
            yield from ids_in(inner, key)
    elif isinstance(value, list):
        for inner in value:
            if name in ("jobs", "order"):
                yield inner
            yield from ids_in(inner)


def test_state_and_deltas_equal_new_load(monkeypatch):
    """A52: real operations in any order, pages that lose their connection, fall asleep, change their mind; in the end
    each page shows what a fresh load shows, and has never been told what it may not see."""
    holds_always(monkeypatch, examples=8)


def holds_always(monkeypatch, *, examples: int) -> None:
    monkeypatch.setattr(hubs, "ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(outbox, "MAX_WAITING", 1)
    monkeypatch.setattr(outbox, "DELAY_SECONDS", 0.02)
    monkeypatch.setattr(invalidation, "period", lambda name: 0.2 if name in ("readings", "overview") else 1.0)
    monkeypatch.setattr(invalidation, "_pauses", lambda: {"people": 0.3})
    monkeypatch.setattr(loader, "FULL_LOAD_SECONDS", 1.0)

    # The same examples each time, and no shrinking: one that fails waits in vain at each step of it.
    @settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(STEPS)
    def holds(steps):
        Node.objects.update(intent="cordoned")
        world = World()
        jobs = [f"job:{job_id}" for job_id, _ in world.jobs]
        topics = [*ALL, *jobs, "queue:1-3?sort=-gpus", f"node:{world.agents[0].name}"]
        admin = make_user(f"admin-of-{world.ours.pk}", admin=True)
        viewers = [
            (world.members[0], topics, [world.ours.pk]),
            (admin, topics, None),
        ]
        asyncio.run(play(steps, world, viewers, monkeypatch))

    try:
        holds()
    finally:
        asyncio.run(sync_to_async(connections.close_all)())
