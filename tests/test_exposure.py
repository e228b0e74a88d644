"""The secrets that a worker was given are in no process's arguments, in no other process's environment, in no log line
and in no core file.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from client.child import COMMAND
from tests.downloads.puller import Puller, stocked_hub
from tests.gguf_files import tiny_model
from tests.receiver import Receiver
from tests.worker_process import WorkerProcess, gated
from worker.exposure import shows_secrets
from worker.observe.covering import cover_arguments, without_secrets

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc")

TOKEN = "correct-horse;battery staple"
OTHER = "hub-secret-41"
PASSWORD = "opensesame"

SECRETS = (TOKEN, OTHER, PASSWORD)


# ── which words are covered ──────────────────────────────────────────────────────────────────────


@given(
    flag=st.sampled_from(["--api-key", "--token", "--hf-token", "--client-secret", "--password"]),
    secret=st.text(st.characters(codec="latin-1", exclude_characters="\0"), min_size=1),
    before=st.lists(st.sampled_from(["python", "-m", "worker", "serve", "--port", "0", "--no-page"])),
    after=st.lists(st.sampled_from(["--port", "0", "--model", "x.gguf", "token", "-m"])),
    is_one_word=st.booleans(),
)
def test_the_value_of_a_secrets_flag_is_covered_and_all_else_stays(
    *, flag: str, secret: str, before: list[str], after: list[str], is_one_word: bool
) -> None:
    stars = "*" * len(secret)
    given, expected = ([f"{flag}={secret}"], [f"{flag}={stars}"]) if is_one_word else ([flag, secret], [flag, stars])
    assert cover_arguments([*before, *given, *after]) == [*before, *expected, *after]


@pytest.mark.parametrize(
    ("argument", "covered"),
    [
        ("http://user:pw@host/x?y=1", "http://*******@host/x?y=1"),
        ("https://host/m.gguf?token=abc&x=1", "https://host/m.gguf?token=***&x=1"),
        ("--callback-url=http://user:pw@host", "--callback-url=http://*******@host"),
    ],
)
def test_a_secret_within_an_address_is_covered_alone(argument: str, covered: str) -> None:
    assert cover_arguments([argument]) == [covered]


def test_covering_keeps_lengths_and_covers_once() -> None:
    words = ["--api-key", TOKEN, f"--token={TOKEN}", f"http://u:{PASSWORD}@host"]
    covered = cover_arguments(words)
    assert [len(word) for word in covered] == [len(word) for word in words]
    assert cover_arguments(covered) == covered


def test_an_environment_without_secrets_has_the_rest() -> None:
    names = ["LLORCH_API_TOKEN", "LLORCH_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "GITHUB_TOKEN"]
    kept = {"PATH": "/bin", "LLORCH_MAX_TOKENS_IN": "1", "CUDA_VISIBLE_DEVICES": "0", "TOKENIZERS_PARALLELISM": "1"}
    assert without_secrets({**dict.fromkeys(names, "x"), **kept}) == kept


# ── what the system shows of real processes ──────────────────────────────────────────────────────


def tree(worker: WorkerProcess) -> list[psutil.Process]:
    process = psutil.Process(worker.process.pid)
    return [process, *process.children(recursive=True)]


def shown(process: psutil.Process, name: str) -> str:
    return Path(f"/proc/{process.pid}/{name}").read_bytes().decode("latin-1")


def secrets_in(text: str) -> list[str]:
    return [secret for secret in SECRETS if secret in text]


def check_hidden(worker: WorkerProcess) -> None:
    """No process shows a secret; the other processes do not even have the token of clients."""
    first, *others = tree(worker)
    assert [secrets_in(shown(process, "cmdline")) for process in (first, *others)] == [[]] * (1 + len(others))
    assert [TOKEN in shown(process, "environ") for process in others] == [False] * len(others)
    assert others


def with_password(url: str) -> str:
    return url.replace("://", f"://user:{PASSWORD}@")


@on_linux
@pytest.mark.model
@pytest.mark.process
def test_a_running_worker_shows_no_secret_in_arguments_environments_and_its_log(shallow_model: Path) -> None:
    """The token works meanwhile: a covered flag is not a refused one."""
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
        assert "--api-key" in shown(psutil.Process(worker.process.pid), "cmdline")
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
        assert [entry for entry in worker.log if "list of processes" in str(entry.get("message"))] == []


@on_linux
@pytest.mark.process
def test_a_worker_that_loads_or_downloads_shows_none_either(tmp_path: Path) -> None:
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


CLIENTS = ((*COMMAND, "launch", "codex"), (sys.executable, "-m", "tools.bench", "load", "--out", "{folder}"))


@on_linux
@pytest.mark.process
@pytest.mark.parametrize("command", CLIENTS, ids=["launch", "bench"])
def test_a_client_command_covers_its_token_while_it_waits(command: tuple[str, ...], tmp_path: Path) -> None:
    """It asks a server that does not answer, so that it can be looked at meanwhile."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        launch = subprocess.Popen(
            [*(word.format(folder=tmp_path) for word in command), "--url", url, "--api-key", TOKEN]
        )
        try:
            with silent.accept()[0]:
                assert secrets_in(shown(psutil.Process(launch.pid), "cmdline")) == []
        finally:
            launch.kill()
            launch.wait()


def test_without_proc_the_arguments_themselves_say_whether_a_secret_shows(tmp_path: Path) -> None:
    assert shows_secrets(["llorch-worker", "--api-key", TOKEN], tmp_path)
    assert not shows_secrets(["llorch-worker", "--api-key", "****"], tmp_path)
    assert not shows_secrets(["llorch-worker", "--port", "0"], tmp_path)


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
