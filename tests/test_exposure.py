"""A worker's secrets are in no other process's arguments or environment, no log line and no core file."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from client.child import COMMAND
from tests.gguf_files import tiny_model
from tests.models.downloads.puller import Puller, stocked_hub
from tests.receiver import Receiver
from tests.worker_process import WorkerProcess, gated
from worker.observe.redaction import shows_secret, without_secrets

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")

TOKEN = "correct-horse;battery staple"
OTHER = "hub-secret-41"
PASSWORD = "opensesame"

SECRETS = (TOKEN, OTHER, PASSWORD)


# ── arguments and environments ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("flag", ["--api-key", "--token", "--hf-token", "--password"])
def test_a_secret_among_the_arguments_is_found(flag: str) -> None:
    plain = ["python", "-m", "worker", "serve", "--port", "0", "--model", "token.gguf", "http://host/x?y=1"]
    assert not shows_secret(plain)
    for given in ([flag, TOKEN], [f"{flag}={TOKEN}"], [f"--callback-url=http://user:{PASSWORD}@host"]):
        assert shows_secret([*plain, *given])


def test_an_environment_without_secrets_has_the_rest() -> None:
    names = ["LLORCH_API_TOKEN", "LLORCH_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "GITHUB_TOKEN"]
    kept = {"PATH": "/bin", "LLORCH_MAX_TOKENS_IN": "1", "CUDA_VISIBLE_DEVICES": "0", "TOKENIZERS_PARALLELISM": "1"}
    assert without_secrets({**dict.fromkeys(names, "x"), **kept}) == kept


def tree(worker: WorkerProcess) -> list[psutil.Process]:
    process = psutil.Process(worker.process.pid)
    return [process, *process.children(recursive=True)]


def shown(process: psutil.Process, name: str) -> str:
    return Path(f"/proc/{process.pid}/{name}").read_bytes().decode("latin-1")


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def check_hidden(worker: WorkerProcess) -> None:
    """No other process than the front has the token of clients."""
    others = tree(worker)[1:]
    texts = [shown(process, name) for process in others for name in ("cmdline", "environ")]
    assert texts
    assert not [text for text in texts if TOKEN in text]


def with_password(url: str) -> str:
    return url.replace("://", f"://user:{PASSWORD}@")


@on_linux
@pytest.mark.model
@pytest.mark.process
def test_a_worker_keeps_its_token_from_its_engines_and_its_log(shallow_model: Path) -> None:
    """It warns of a token that is a flag."""
    flags = ("--model", str(shallow_model), "--port", "0", "--api-key", TOKEN)
    environment = {"HF_TOKEN": OTHER, "LLORCH_LOG_LEVEL": "debug"}
    with (
        Receiver() as receiver,
        WorkerProcess(*flags, "--callback-url", with_password(receiver.url), environment=environment) as worker,
    ):
        worker.ready().wait_for("callback_sent")
        (called,) = receiver.requests()
        assert called.headers["authorization"] == f"Bearer {TOKEN}"
        check_hidden(worker)
        assert [secrets_in(shown(process, "environ")) for process in tree(worker)[1:]] == [[]]
        for text, status in ((TOKEN, 200), ("wrong", 401)):
            answer = worker.get(f"/v1/models?x={OTHER}", headers={"Authorization": f"Bearer {text}"})
            assert answer.status_code == status
        worker.post(f"/cancel/{TOKEN}", headers={"Authorization": f"Bearer {TOKEN}"})
        worker.engine.kill()
        worker.wait_for("engine_restarted")
        worker.wait_for("callback_sent")
        check_hidden(worker)
        worker.terminate()
        worker.exit_code()
        assert secrets_in("".join(worker.stderr)) == []
        assert len([entry for entry in worker.log if "LLORCH_API_TOKEN" in str(entry.get("message"))]) == 1


@on_linux
@pytest.mark.process
def test_a_worker_that_loads_or_downloads_keeps_it_too(tmp_path: Path) -> None:
    _, command = gated(tmp_path)
    model = str(tiny_model().write(tmp_path / "tiny.gguf"))
    with WorkerProcess(
        "--model", model, "--port", "0", command=command, environment={"LLORCH_API_TOKEN": TOKEN}
    ) as one:
        one.wait_for("model_load_progress")
        check_hidden(one)
        one.terminate()
        one.exit_code()
    with stocked_hub() as hub:
        hub.gate_after = 1_000_000
        catalog = Puller(hub.url, tmp_path / "models", tmp_path).catalog(
            source=f'{{ kind = "url", url = "{hub.url}/files/tiny.gguf" }}'
        )
        flags = ("--model", "tiny", "--models-dir", str(tmp_path / "models"), "--catalog", catalog, "--port", "0")
        with WorkerProcess(*flags, f"--api-key={TOKEN}", environment={"LLORCH_API_TOKEN": TOKEN}) as other:
            other.listening()
            assert hub.at_gate.wait(30)
            check_hidden(other)
            other.terminate()
            other.exit_code()


# ── core files ───────────────────────────────────────────────────────────────────────────────────

DUMPED = "import os; os.abort()"


@on_linux
@pytest.mark.model
@pytest.mark.process
def test_no_process_of_a_worker_leaves_a_core_file(tmp_path: Path, shallow_model: Path) -> None:
    """A plain program of the same folder and limits leaves one, where the system writes them into the folder."""
    here = ("/bin/sh", "-c", 'ulimit -S -c unlimited; cd "$0" && exec "$@"', str(tmp_path))
    paths = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    subprocess.run([*here, sys.executable, "-c", DUMPED], check=False)
    cores = set(tmp_path.glob("core*"))
    writes_cores = Path("/proc/sys/kernel/core_pattern").read_text().startswith("core")
    assert bool(cores) == (writes_cores and resource.getrlimit(resource.RLIMIT_CORE)[1] == resource.RLIM_INFINITY)
    with WorkerProcess(
        *("--model", str(shallow_model), "--port", "0"), command=(*here, *COMMAND), environment={"PYTHONPATH": paths}
    ) as worker:
        worker.ready()
        limits = [psutil.Process(process.pid).rlimit(psutil.RLIMIT_CORE)[0] for process in tree(worker)]
        assert limits == [min(1, limit) for limit in limits]
        worker.engine.send_signal(signal.SIGABRT)
        worker.wait_for("engine_restarted")
        worker.process.send_signal(signal.SIGABRT)
        assert worker.process.wait(60) == -signal.SIGABRT
    assert set(tmp_path.glob("core*")) == cores
