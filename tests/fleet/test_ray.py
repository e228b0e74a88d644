"""`make fleet-test`: deploy/ray with the real Ray Serve, two workers of the real kind on this machine."""

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.clients.v1 import CHAT, ask, chunks_of, content, pieces_of, streamed, streaming, user
from tests.fleet.processes import LONG, SYSTEM, Fleet, check_conversations_stay, ray_fleet
from tests.worker_process import Event, Stream, check_order, eventually

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.fleet, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def fleet(model_path: Path) -> Iterator[Fleet]:
    with ray_fleet(model_path, min_workers=2, max_workers=2) as fleet:
        fleet.wait_for_workers(2)
        yield fleet


def execute(fleet: Fleet, job_id: str, n_tokens: int, prompt: str = "Once upon a time") -> Stream:
    return Stream(fleet.url, {"job_id": job_id, "prompt": prompt, "max_tokens": n_tokens, "ignore_eos": True})


def total(fleet: Fleet, sample: str, **labels: str) -> float:
    """The sum over all workers."""
    families = list(text_string_to_metric_families(fleet.get("/metrics").text))
    names = [family.name for family in families]
    assert len(names) == len(set(names)), "a metric is told twice"
    return sum(
        found.value
        for family in families
        for found in family.samples
        if found.name == sample and labels.items() <= found.labels.items()
    )


def is_idle(fleet: Fleet) -> bool:
    return total(fleet, "worker_kv_cells_used") == 0


def test_both_doors_answer_as_a_worker_does(fleet: Fleet) -> None:
    with execute(fleet, "both-doors", 8) as stream:
        events = list(stream)
    check_order(events)
    assert events[-1]["tokens_sampled"] == 8
    assert stream.response.headers["content-type"].startswith("text/event-stream")
    asked: Event = {"messages": user("Hello"), "max_tokens": 8, "ignore_eos": True}
    assert "".join(pieces_of(streamed(fleet, **asked))) == content(ask(fleet, **asked))
    assert fleet.get("/v1/models").json()["data"]
    assert fleet.health()["status"] == "healthy"


def test_a_refusal_is_the_workers_own(fleet: Fleet) -> None:
    refused = fleet.post("/execute", json={"job_id": "x", "prompt": "", "max_tokens": 0})
    assert refused.status_code == 400
    assert [error["field"] for error in refused.json()["errors"]] == ["prompt", "max_tokens"]
    assert "x-correlation-id" in refused.headers
    assert fleet.get("/nowhere").status_code == 404
    # The door passes on Host, with which the worker compares a page's origin.
    own = {"host": "ray:8000", "origin": "http://ray:8000"}
    assert fleet.post("/cancel/7", headers=own).status_code == 202
    assert fleet.post("/cancel/7", headers=own | {"origin": "http://evil.example"}).status_code == 403
    assert fleet.get("/health", headers={"host": "evil.example"}).status_code == 421


def test_tokens_come_as_they_are_made_and_a_client_that_leaves_cancels_its_job(fleet: Fleet) -> None:
    before = total(fleet, "worker_requests_total", outcome="cancelled")
    with execute(fleet, "leaves", LONG) as stream:
        stream.until("token")
        assert not is_idle(fleet)
    eventually(lambda: total(fleet, "worker_requests_total", outcome="cancelled") == before + 1)
    with streaming(fleet, messages=user("Hello"), max_tokens=LONG, ignore_eos=True) as response:
        next(chunks_of(response))
    eventually(lambda: total(fleet, "worker_requests_total", outcome="cancelled") == before + 2)
    eventually(lambda: is_idle(fleet))


def test_a_cancel_reaches_whichever_worker_has_the_job(fleet: Fleet) -> None:
    with execute(fleet, "cancel-0", LONG, "A") as first, execute(fleet, "cancel-1", LONG, "B") as second:
        for stream in (first, second):
            stream.until("token")
        for stream in (first, second):
            assert fleet.post(f"/cancel/{stream.job_id}").status_code == 202
            assert list(stream)[-1]["code"] == "CANCELLED"


def test_a_conversation_stays_where_its_beginning_was_read(fleet: Fleet) -> None:
    check_conversations_stay(fleet, 8)


def test_jobs_that_begin_alike_are_not_all_given_to_one_worker(fleet: Fleet) -> None:
    prompt = SYSTEM * 2
    before = _served(fleet)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda number: ask(fleet, messages=user(f"{prompt} {number}"), max_tokens=48), range(16)))
    after = _served(fleet)
    assert len(after) == 2
    assert all(after[worker] > before.get(worker, 0) for worker in after)


def _served(fleet: Fleet) -> dict[str, float]:
    families = text_string_to_metric_families(fleet.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return {
        sample.labels["worker_id"]: sample.value
        for sample in samples
        if sample.name == "worker_requests_total" and sample.labels["outcome"] == "success"
    }


def test_a_worker_that_dies_is_replaced_and_no_request_is_lost(fleet: Fleet) -> None:
    before = fleet.worker_ids()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(ask, fleet, messages=user(f"Hello {number}"), max_tokens=64) for number in range(24)]
        fleet.workers()[0].kill()
        # A job that has begun to answer whole has sent nothing yet, so it is given to the other worker.
        assert all(content(answer.result()) for answer in answers)
    eventually(lambda: fleet.worker_ids() != before)
    fleet.wait_for_workers(2)
    assert content(ask(fleet, messages=user("Hello"), max_tokens=4))


def test_a_stream_whose_worker_dies_breaks_off_instead_of_ending(fleet: Fleet) -> None:
    with streaming(fleet, messages=user("Hello"), max_tokens=LONG, ignore_eos=True) as response:
        chunks = chunks_of(response)
        next(chunks)
        for worker in fleet.workers():
            worker.kill()
        with pytest.raises(Exception, match=r"peer closed connection|cut"):
            list(chunks)
    fleet.wait_for_workers(2)


def test_workers_come_with_the_queue_and_finish_their_jobs_before_they_go(model_path: Path) -> None:
    scaling = {
        "min_replicas": 1,
        "max_replicas": 2,
        "target_ongoing_requests": 2,
        "upscale_delay_s": 0.5,
        "downscale_delay_s": 5,
        "look_back_period_s": 2,
        "metrics_interval_s": 0.5,
    }
    with ray_fleet(model_path, workers={"autoscaling_config": scaling}, parallel=2) as fleet:
        fleet.wait_for_workers(1)
        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(_whole, fleet, f"queue-{number}") for number in range(12)]
            fleet.wait_for_workers(2)
            assert all(job.result()[-1]["type"] == "end" for job in jobs)
        # A job on each of the two, which are too many now; neither is cut short.
        with ThreadPoolExecutor(2) as pool:
            jobs = [pool.submit(_whole, fleet, f"last-{number}") for number in range(2)]
            assert all(job.result()[-1]["type"] == "end" for job in jobs)
        fleet.wait_for_workers(1)
        eventually(lambda: len(fleet.workers()) == 1)


def _whole(fleet: Fleet, job_id: str) -> list[Event]:
    with execute(fleet, job_id, LONG // 5, f"{job_id} once upon a time") as stream:
        return list(stream)


def test_a_full_fleet_refuses_at_once_and_reports_its_health(model_path: Path) -> None:
    with ray_fleet(model_path, min_workers=1, max_workers=1, parallel=1, max_queue=1) as fleet:
        fleet.wait_for_workers(1)
        asked = {"model": "any", "messages": user("Hello"), "max_tokens": LONG // 4, "ignore_eos": True}
        with ThreadPoolExecutor(8) as pool:
            # Six are in the worker, one waits for it, and one is too many.
            jobs = [pool.submit(fleet.post, CHAT, json=asked) for _ in range(8)]
            done, _ = wait(jobs, return_when=FIRST_COMPLETED)
            assert fleet.health()["slots_busy"] == 1
            body = done.pop().result()
            assert body.status_code == 503
            assert body.headers["retry-after"] == "1"
            assert (body.json()["code"], body.json()["error"]["code"]) == ("WORKER_BUSY", "WORKER_BUSY")
