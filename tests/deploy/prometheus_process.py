"""A real Prometheus on a free port of this machine, with deploy/prometheus as it is but for the pace of its scrapes."""

import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml

from client.child import free_port
from tests.deploy.manifests import DEPLOY
from tests.worker_process import PATIENCE_S, eventually


def program(name: str) -> str:
    """The path of a program of Debian's package. Raises: AssertionError."""
    found = shutil.which(name)
    assert found is not None, f"{name} is not there: apt-get install prometheus"
    return found


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
