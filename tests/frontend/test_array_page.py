"""The page of an array: paged and filtered elements, and cancel and retry of a selection."""

import re

import pytest

from jobs.models import Job
from tests.factories import make_member, make_node, make_tenant, run_cycle
from tests.frontend.browsing import browser, text_of
from tests.jobs.arrays import ends, submit_array

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def node():
    return make_node(name="n1", gpus=2)


@pytest.fixture
def array(node, nlp, member):
    """Of 120 elements 0 has failed, 1 completed, 2 and 3 run."""
    array = submit_array(member, nlp, 120)
    run_cycle()
    first, second = node.start_all()
    node.end(first, exit_code=3)
    ends(node, [second])
    run_cycle()
    node.start_all()
    return array


def numbers(page):
    return [int(number) for number in re.findall(r'<tr data-key="(\d+)"', page)]


def states(array):
    return dict(Job.objects.filter(array_id=array).order_by("array_index").values_list("array_index", "state"))


def test_array_page_opens_on_elements_without_attempt_tabs(array, member):
    page = text_of(browser(member).get(f"/jobs/{array}/"))
    assert re.findall(r'id="tab-(\w+)"', page) == ["elements", "timeline", "why", "spec", "events"]
    assert 'id="tab-elements" aria-current="page"' in page
    assert numbers(page) == list(range(50))
    assert "exited with code 3" in page
    assert 'aria-label="116 pending, 2 running, 1 completed, 1 failed"' in page


def test_array_elements_are_paged_and_filtered(array, member):
    client = browser(member)

    def shown(query):
        return numbers(text_of(client.get(f"/jobs/{array}/?tab=elements&{query}")))

    assert shown("from=50") == list(range(50, 100))
    assert shown("from=100") == list(range(100, 120))
    assert shown("state=live") == [2, 3]
    assert shown("state=final&index=1-9") == [1]
    assert shown("index=7,3-4") == [3, 4, 7]
    assert shown("state=waiting&index=0-5&from=5") == [5]
    page = text_of(client.get(f"/jobs/{array}/?tab=elements&state=waiting"))
    assert f'href="/jobs/{array}/?tab=elements&amp;state=waiting&amp;from=54"' in page


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("index=120", "120 does not exist"),
        ("index=x", "ust be element numbers"),
        ("state=odd", "here is no state &#x27;odd&#x27;"),
    ],
)
def test_invalid_element_filter_shows_error(array, member, query, message):
    response = browser(member).get(f"/jobs/{array}/?tab=elements&{query}")
    assert response.status_code == 200
    assert message in text_of(response)
    assert numbers(text_of(response)) == []


def test_selected_and_written_elements_are_cancelled_together(array, member):
    client = browser(member)
    params = {"index": ["2", "10"], "elements": "20-29"}
    payload = text_of(client.post(f"/jobs/{array}/elements/cancel/", params, follow=True))
    assert f"Array {array}: 11 elements are cancelled, 1 element is being stopped." in payload
    assert states(array)[2] == "stopping"


def test_failed_and_selected_elements_are_retried(array, member):
    client = browser(member)
    page = text_of(client.get(f"/jobs/{array}/"))
    assert "Retry 1 failed" in page
    client.post(f"/jobs/{array}/elements/retry/", {"elements": "failed"})
    assert states(array)[0] == "pending"
    assert "that failed</button>" not in text_of(client.get(f"/jobs/{array}/"))
    client.post(f"/jobs/{array}/elements/retry/", {"index": "1"})
    assert states(array)[1] == "pending"


@pytest.mark.parametrize("params", [{}, {"elements": "120"}, {"elements": "x"}, {"index": "x"}])
def test_invalid_element_selection_is_rejected_without_change(array, member, params):
    previous = states(array)
    payload = text_of(browser(member).post(f"/jobs/{array}/elements/cancel/", params, follow=True))
    assert "flash error" in payload
    assert states(array) == previous


def test_array_page_has_no_buttons_for_other_members(array, nlp):
    page = text_of(browser(make_member(nlp)).get(f"/jobs/{array}/"))
    assert numbers(page)
    assert "elements-act" not in page
    assert (
        browser(make_member(make_tenant("other"))).post(f"/jobs/{array}/elements/cancel/", {"index": "1"}).status_code
        == 404
    )


def test_retry_button_reruns_failed_job(node, nlp, member):
    """Also the one of an element, which is then one of its open array again."""
    array = submit_array(member, nlp, 1)
    run_cycle()
    node.end(*node.start_all(), exit_code=3)
    run_cycle()
    client, element = browser(member), Job.objects.get(array_id=array).pk
    assert "Retry failed elements</button>" in text_of(client.get(f"/jobs/{array}/"))
    assert "Retry</button>" in text_of(client.get(f"/jobs/{element}/"))
    client.post(f"/jobs/{element}/retry/")
    assert (states(array), Job.objects.get(pk=array).state) == ({0: "pending"}, "running")
    assert "/retry/" not in text_of(client.get(f"/jobs/{element}/"))
    answer = client.post("/jobs/act/", {"verb": "retry", "ids": str(element)}).json()
    assert (answer["done"], answer["refused"][0]["id"]) == ([], element)
