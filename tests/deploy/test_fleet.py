"""deploy/ under the programs that read it: kubectl, promtool, Grafana's types, a Prometheus that scrapes two workers.

`make fleet-test` runs this. It needs Debian's package `prometheus`; the rest comes into an environment of its own.
"""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import kubernetes_validate
import pytest
import yaml

from client.child import free_port
from tests.clients.environments import Environment, environment
from tests.deploy.expressions import (
    ALERT_TESTS,
    ALERTS,
    BOARD,
    alerts,
    autoscaler_expressions,
    board_expressions,
    expressions,
    selectors,
)
from tests.deploy.manifests import DEPLOY, Kustomization, kustomizations
from tests.deploy.test_kubernetes import CORE_GROUPS
from tests.worker_process import PATIENCE_S, WorkerProcess, eventually, serve_default

pytestmark = [pytest.mark.fleet, pytest.mark.process, pytest.mark.model, pytest.mark.long]

TOOLS = DEPLOY.parent / "tools"
PROGRAMS = Path(__file__).parent / "programs"
WORKERS = ("first", "second")
N_JOBS = 24


@pytest.fixture(scope="module")
def tools() -> Environment:
    return environment("deploy")


# ── kubectl ──────────────────────────────────────────────────────────────────────────────────────


def rendered(tools: Environment, folder: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(tools.run("kubectl", "kustomize", str(folder))))


@pytest.mark.parametrize("kustomization", kustomizations(), ids=lambda each: each.folder.name)
def test_kustomize_builds_every_folder_and_what_it_builds_satisfies_the_schemas(
    tools: Environment, kustomization: Kustomization
) -> None:
    built = rendered(tools, kustomization.folder)
    assert len(built) == len(list(kustomization.objects()))
    for one in built:
        if one["apiVersion"] in CORE_GROUPS:
            kubernetes_validate.validate(one, "1.37", strict=True)


@pytest.mark.parametrize(("folder", "image", "device"), [("cpu", "cpu", "cpu"), ("gpu", "cuda", "nvidia.com/gpu")])
def test_an_overlay_gives_the_worker_its_image_and_its_device_and_leaves_the_rest(
    tools: Environment, folder: str, image: str, device: str
) -> None:
    (built,) = [one for one in rendered(tools, DEPLOY / "kubernetes" / folder) if one["kind"] == "Deployment"]
    pod = built["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == f"llorch-worker:{image}"
    assert device in container["resources"]["limits"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert {each["name"] for each in container["env"]} >= {"LLORCH_WORKER_ID", "LLORCH_API_TOKEN"}
    assert pod["securityContext"]["runAsUser"] == 10001


# ── promtool and Grafana ─────────────────────────────────────────────────────────────────────────


def program(name: str) -> str:
    """The path of a program of Debian's package. Raises: AssertionError."""
    found = shutil.which(name)
    assert found is not None, f"{name} is not there: apt-get install prometheus"
    return found


def promtool(*arguments: str, folder: Path = DEPLOY / "prometheus") -> subprocess.CompletedProcess[str]:
    command = (program("promtool"), *arguments)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", *(path.name for path in ALERT_TESTS)),
    ],
)
def test_promtool_finds_nothing_wrong(arguments: tuple[str, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("instead", ["vector(1)", "vector(1) > 1"], ids=["always", "never"])
@pytest.mark.parametrize("alert", [rule["alert"] for rule in alerts()])
def test_an_alert_that_always_or_never_fires_fails_its_tests(alert: str, instead: str, tmp_path: Path) -> None:
    rules = yaml.safe_load(ALERTS.read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            if rule["alert"] == alert:
                rule["expr"] = instead
    (tmp_path / ALERTS.name).write_text(yaml.safe_dump(rules))
    for path in ALERT_TESTS:
        shutil.copy(path, tmp_path)
    done = promtool("test", "rules", *(path.name for path in ALERT_TESTS), folder=tmp_path)
    assert done.returncode == 1
    assert alert in done.stdout + done.stderr


def test_grafanas_own_types_know_every_key_of_the_board(tools: Environment, tmp_path: Path) -> None:
    check = ("python", str(PROGRAMS / "board_types.py"))
    assert tools.run(*check, str(BOARD)).split() == []
    misspelt = tmp_path / "misspelt.json"
    misspelt.write_text(BOARD.read_text().replace('"legendFormat"', '"legendFromat"', 1))
    assert tools.run(*check, str(misspelt)).split() == [".panels[0].targets[0].legendFromat"]


# ── a Prometheus that scrapes two workers ────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Prometheus:
    url: str

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer. Raises: AssertionError with what Prometheus says of a request that it refuses."""
        answer = httpx2.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=PATIENCE_S, trust_env=False).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of now: `metric` has the labels, `value` the time and the value as text."""
        found: list[dict[str, Any]] = self.ask("query", query=expression)["result"]
        return found

    def is_ready(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/-/ready", timeout=PATIENCE_S, trust_env=False).is_success
        except httpx2.TransportError:
            return False


@contextmanager
def prometheus(folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """`folder` is empty and holds the configuration and the samples; a scrape comes every second."""
    for name in ("prometheus.yml", "alerts.yml"):
        (folder / name).write_text((DEPLOY / "prometheus" / name).read_text().replace("15s", "1s"))
    (folder / "workers.yml").write_text(yaml.safe_dump([{"targets": list(targets)}]))
    address = f"127.0.0.1:{free_port()}"
    command = (
        *(program("prometheus"), f"--config.file={folder / 'prometheus.yml'}", "--log.level=error"),
        *(f"--storage.tsdb.path={folder / 'samples'}", f"--web.listen-address={address}"),
    )
    with subprocess.Popen(command) as process:
        try:
            scraper = Prometheus(f"http://{address}")
            eventually(lambda: process.poll() is not None or scraper.is_ready())
            assert process.poll() is None, "Prometheus ended; it says why on stderr"
            yield scraper
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def scraped(any_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """It has seen both workers finish jobs, refuse one, and find the beginning of a prompt computed."""
    flags = ("--parallel", "2", "--ctx-size", "4096")
    with (
        serve_default(any_model, *flags, "--worker-id", WORKERS[0]) as first,
        serve_default(any_model, *flags, "--worker-id", WORKERS[1]) as second,
        prometheus(
            tmp_path_factory.mktemp("prometheus"),
            [each.ready().url.removeprefix("http://") for each in (first, second)],
        ) as scraper,
        ThreadPoolExecutor(8) as clients,
    ):
        eventually(lambda: len(scraper.query("worker_ready == 1")) == len(WORKERS))
        ends = list(clients.map(one_job, [first, second] * N_JOBS, range(2 * N_JOBS)))
        assert set(ends) == {"end"}
        for worker in (first, second):
            assert not worker.post("/execute", json={"job_id": "refused", "prompt": "", "max_tokens": 1}).is_success
        refused = 'worker_refusals_total{code="INVALID_REQUEST"} == 1'
        seen = f'worker_requests_total{{outcome="success"}} == {N_JOBS} and on (worker_id) {refused}'
        eventually(lambda: len(scraper.query(seen)) == len(WORKERS))
        yield scraper


def one_job(worker: WorkerProcess, number: int) -> str:
    kind: str = worker.run(prompt="Once upon a time there was a worker, " * 8 + str(number), max_tokens=24)[-1]["type"]
    return kind


@pytest.mark.parametrize("selector", sorted({one for _, expression in expressions() for one in selectors(expression)}))
def test_both_workers_answer_with_every_series_that_is_asked_for(scraped: Prometheus, selector: str) -> None:
    """The labels are those that it is asked for: a label's value that is misspelt has no series."""
    assert len(scraped.query(f"count by (instance) ({selector})")) == len(WORKERS)


@pytest.mark.parametrize("expression", [*board_expressions(), *autoscaler_expressions()])
def test_prometheus_computes_what_the_board_and_the_autoscaler_ask(scraped: Prometheus, expression: str) -> None:
    assert scraped.query(expression) != []


def test_every_alert_is_evaluated_and_none_fires_for_workers_that_are_well(scraped: Prometheus) -> None:
    """The gaps between tokens are long for a moment on a busy machine: pending, not firing."""
    rules = [rule for group in scraped.ask("rules")["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule["health"] for rule in rules} == {rule["alert"]: "ok" for rule in alerts()}
    assert [rule["name"] for rule in rules if rule["state"] == "firing"] == []
