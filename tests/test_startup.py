"""The start, up to the first job: the order of events, what is open when, and what prevents a start.

The engine of these workers loads its model when the test opens a gate (tests/crashing_engine.py).
"""

import itertools
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from tests.gguf_files import tiny_model
from tests.receiver import Receiver
from tests.worker_process import PATIENCE_S, Event, WorkerProcess, gated, serve_default
from worker.llama.devices import devices

pytestmark = pytest.mark.process

JOB = {"job_id": "early", "prompt": "Hello", "max_tokens": 1}
ABSENT_DEVICE = "cuda" if sys.platform == "darwin" else "metal"


@pytest.fixture
def command(tmp_path: Path) -> tuple[str, ...]:
    """The command of a worker whose engine never loads."""
    return gated(tmp_path)[1]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A file that passes our checks; behind a closed gate nobody asks for more."""
    return tiny_model().write(tmp_path / "tiny.gguf")


# ── a start that succeeds ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Story:
    """One start, watched from outside."""

    while_loading: dict[str, httpx2.Response]
    n_early_callbacks: int
    glimpses: list[list[int]]
    """Statuses of /health, /readyz and /execute, asked in turn from a changing first, until all were open."""
    log: list[Event]


@pytest.fixture(scope="module")
def story(any_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    gates, command = gated(tmp_path_factory.mktemp("story"))
    flags = ["--model", str(any_model), "--port", "0", "--worker-id", "w-1"]
    with (
        Receiver() as receiver,
        WorkerProcess(*flags, "--callback-url", receiver.url, command=command) as worker,
    ):
        worker.listening().wait_for("model_load_progress", percent=0)
        with worker.client() as client:
            while_loading = ask_everything(client)
            n_early_callbacks = len(receiver.requests())
            gates.open("load")
            glimpses = watch_opening(client)
        worker.wait_for("callback_sent")
        worker.terminate()
        assert worker.exit_code() == 0
        yield Story(while_loading, n_early_callbacks, glimpses, worker.log)


def ask_everything(client: httpx2.Client) -> dict[str, httpx2.Response]:
    paths = ("/health", "/v1/health", "/readyz", "/livez", "/v1/ready", "/metrics")
    answers = {path: client.get(path) for path in paths}
    return {**answers, "/execute": client.post("/execute", json=JOB), "/cancel": client.post("/cancel/early")}


def watch_opening(client: httpx2.Client) -> list[list[int]]:
    doors: list[Callable[[], httpx2.Response]] = [
        lambda: client.get("/health"),
        lambda: client.get("/readyz"),
        lambda: client.post("/execute", json=JOB),
    ]
    glimpses = [[503]]
    for first in itertools.cycle(range(3)):
        if 503 not in glimpses[-1]:
            break
        glimpses.append([door().status_code for door in (*doors[first:], *doors[:first])])
    return glimpses


@pytest.mark.model
def test_while_loading_the_worker_lives_but_is_not_ready_and_a_job_may_be_sent_again(story: Story) -> None:
    answers = story.while_loading
    health = answers["/health"].json()
    assert (answers["/health"].status_code, health["status"], health["state"]) == (503, "unhealthy", "starting")
    assert answers["/v1/health"].status_code == 503
    assert (answers["/readyz"].status_code, answers["/livez"].status_code) == (503, 200)
    assert answers["/v1/ready"].json() == {"ready": False, "state": "loading", "model_loaded": False}
    assert (answers["/metrics"].status_code, answers["/cancel"].status_code) == (200, 202)
    refusal = answers["/execute"]
    assert (refusal.status_code, refusal.json()["code"], refusal.json()["retriable"]) == (503, "WORKER_LOADING", True)
    assert int(refusal.headers["retry-after"]) > 0
    assert story.n_early_callbacks == 0, "the callback waits for the model"


@pytest.mark.model
def test_health_readyz_and_execute_open_together(story: Story) -> None:
    """Whichever is asked first: once one is open, all asked after it are."""
    assert {status for glimpse in story.glimpses for status in glimpse} == {200, 503}
    for glimpse in story.glimpses:
        assert glimpse == sorted(glimpse, reverse=True)


@pytest.mark.model
def test_the_log_has_the_start_in_order(story: Story) -> None:
    aside = ("execute_", "engine_", "refused")
    told = [entry["event"] for entry in story.log if not entry["event"].startswith(aside)]
    assert [event for event, _ in itertools.groupby(told)] == [
        *("startup", "listening", "model_load_start", "model_load_progress", "model_load_complete", "ready"),
        *("callback_sent", "shutdown"),
    ]
    percents = [entry["percent"] for entry in story.log if entry["event"] == "model_load_progress"]
    assert percents == sorted(percents)
    assert percents[-1] == 100
    assert {entry["worker_id"] for entry in story.log} == {"w-1"}


# ── binding ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("host", "told", "shown", "reached_at"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1", ["127.0.0.1"]),
        ("0.0.0.0", "0.0.0.0", "0.0.0.0", ["127.0.0.1"]),  # noqa: S104 - the vector asks for it
        ("::1", "::1", "[::1]", ["[::1]"]),
        ("::", "::", "[::]", ["127.0.0.1", "[::1]"]),
        ("0:0::0", "::", "[::]", ["127.0.0.1", "[::1]"]),
    ],
)
def test_275_every_kind_of_address_is_bound_and_a_free_port_reported(
    command: tuple[str, ...], tiny: Path, *, host: str, told: str, shown: str, reached_at: list[str]
) -> None:
    """Every address of IPv6 is every address of IPv4 too."""
    if ":" in host and not (has_ipv6_loopback() and socket.has_dualstack_ipv6()):
        pytest.skip("this machine has no IPv6 loopback address, or no sockets for both")
    with WorkerProcess("--model", str(tiny), "--host", host, "--port", "0", command=command) as worker:
        listening = worker.wait_for("listening")
        port = listening["port"]
        assert (listening["host"], listening["url"]) == (told, f"http://{shown}:{port}")
        for address in reached_at:
            answer = httpx2.get(f"http://{address}:{port}/livez", timeout=PATIENCE_S, trust_env=False)
            assert answer.status_code == 200


def has_ipv6_loopback() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def test_272_a_port_in_use_is_one_clear_line_before_the_engine_starts(tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal_of("--model", str(tiny), "--port", str(port))
    assert line["code"] == "BIND_FAILED"
    reason, _, way_out = line["message"].partition("; ")
    assert reason == f"Failed to bind to 127.0.0.1:{port}: Address already in use"
    assert "choose another --port" in way_out


@pytest.mark.parametrize("host", ["203.0.113.1", "2001:db8::1", "a..b"])
def test_an_address_that_is_not_ours_is_one_clear_line(host: str, tiny: Path) -> None:
    line = refusal_of("--model", str(tiny), "--host", host, "--port", "0")
    shown = f"[{host}]" if ":" in host else host
    assert line["message"].startswith(f"Failed to bind to {shown}:0: ")
    assert "; choose another --host" in line["message"]


# ── what keeps a worker from starting ────────────────────────────────────────────────────────────


def refusal_of(*flags: str) -> Event:
    """The one error line of a worker that does not come to start its engine."""
    with WorkerProcess(*flags) as worker:
        line = worker.failure()
    assert [entry["event"] for entry in worker.log] == ["startup", "error", "shutdown"]
    return line


@pytest.mark.parametrize("reference", ["no-such-model", "/no/such/model.gguf", "hf:not-a-reference"])
def test_a_model_that_nothing_names_is_one_line_and_exit_1(reference: str) -> None:
    line = refusal_of("--model", reference, "--port", "0")
    assert (line["code"], line["model"]) == ("MODEL_NOT_FOUND", reference)
    assert reference in line["message"]


def test_the_log_level_leaves_out_what_is_less_important() -> None:
    with WorkerProcess("--model", "no-such-model", environment={"LLORCH_LOG_LEVEL": "error"}) as worker:
        worker.failure()
    assert [entry["event"] for entry in worker.log] == ["error"]


@pytest.mark.model
def test_a_context_that_memory_cannot_hold_is_refused_with_both_figures(any_model: Path) -> None:
    with serve_default(any_model, "--device", "auto", "--ctx-size", str(2**31 - 1)) as worker:
        line = worker.failure()
    assert (line["code"], line["model"]) == ("INSUFFICIENT_VRAM", str(any_model))
    assert f"not enough memory on {line['device']}: " in line["message"]
    assert line["needed_bytes"] > line["available_bytes"] > 0
    assert "--ctx-size" in line["message"]
    assert "ready" not in {entry["event"] for entry in worker.log}


@pytest.mark.model
def test_a_device_that_is_not_there_is_refused_with_what_there_is(any_model: Path) -> None:
    with serve_default(any_model, "--device", ABSENT_DEVICE) as worker:
        line = worker.failure()
    assert (line["code"], line["device"], line["model"]) == ("MODEL_LOAD_FAILED", ABSENT_DEVICE, str(any_model))
    assert f"no such device: --device {ABSENT_DEVICE}" in line["message"]
    assert "cpu:0" in line["message"]


@pytest.mark.skipif(any(device.is_gpu for device in devices()), reason="this machine has a GPU")
@pytest.mark.parametrize("wish", [("--gpu-layers", "10"), ("--split-mode", "row"), ("--require-full-offload",)])
def test_a_wish_for_a_gpu_is_refused_where_there_is_none(wish: tuple[str, ...], tiny: Path) -> None:
    with WorkerProcess("--model", str(tiny), "--port", "0", *wish) as worker:
        line = worker.failure()
    assert line["message"].startswith(f"{' '.join(wish)}, but no GPU was found")


def test_a_setting_without_effect_is_one_line_that_names_it(command: tuple[str, ...], tiny: Path) -> None:
    flags = ("--deterministic", "--itl-target-ms", "40")
    with WorkerProcess("--model", str(tiny), "--port", "0", *flags, command=command) as worker:
        assert worker.wait_for("no_effect", setting="--itl-target-ms 40")["reason"]
        worker.wait_for("model_load_start")
        worker.terminate()
        assert worker.exit_code() == 0


def test_a_variable_that_no_setting_reads_is_one_line_with_the_likely_name(tiny: Path) -> None:
    environment = {"LLORCH_CTX_SZIE": "4096", "LLORCH_SERVICE_HOST": "10.0.0.1"}
    flags = ("--model", str(tiny), "--port", "0")
    with WorkerProcess(*flags, environment=environment) as worker:
        told = worker.wait_for("no_effect")
        assert (told["setting"], told["level"]) == ("LLORCH_CTX_SZIE", "warning")
        assert "did you mean LLORCH_CTX_SIZE?" in told["reason"]
        worker.exit_code()
    assert [entry["event"] for entry in worker.log].count("no_effect") == 1


def test_a_catalogue_that_cannot_be_read_is_a_usage_error_before_anything_is_logged(tiny: Path) -> None:
    with WorkerProcess("--model", str(tiny), "--catalog", "/nowhere.toml") as worker:
        assert worker.exit_code() == 2
    assert worker.stderr == [
        "llorch-worker: error: catalogue /nowhere.toml cannot be read: No such file or directory\n"
    ]


def test_an_engine_that_dies_while_loading_is_a_start_up_error(command: tuple[str, ...], tiny: Path) -> None:
    with WorkerProcess("--model", str(tiny), "--port", "0", command=command) as worker:
        worker.wait_for("model_load_progress")
        worker.engine.send_signal(signal.SIGKILL)
        line = worker.failure()
    assert line["code"] == "ENGINE_CRASHED"
    assert "SIGKILL" in line["message"]
