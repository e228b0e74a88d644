"""The behaviour of a running image: it serves, calls back, drains, survives its engine, and ends with the right exit
code."""

import json
import time

from client.child import free_port
from tests.default_model import default_file
from tests.receiver import Receiver
from tests.worker_process import check_order, text_of
from tools.images.building import Built, pip_mounts
from tools.images.container import PROMPT, Container, new_volume, once
from tools.images.store import Skipped
from worker.models.downloads.catalog import load_catalog

_N_TOKENS = 8
_SHORT = ("--max-tokens", str(_N_TOKENS), "--temperature", "0")
_LONG = 120
"""The number of tokens; it is large enough that the stop comes before the last one."""


def it_serves_after_one_ready_callback(built: Built) -> str:
    with (
        Receiver(wants_probe=True) as receiver,
        Container(built, "--port", "0", "--callback-url", receiver.url) as worker,
    ):
        worker.ready().wait_for("callback_sent")
        (received,) = receiver.requests(1)
        assert received.health_status == 200, received
        assert json.loads(received.body)["uri"] == f"http://localhost:{worker.port}"
        paths = ("/livez", "/readyz", "/openapi/openapi.json", "/docs", "/docs/redoc.standalone.js")
        assert [worker.get(path).status_code for path in paths] == [200] * len(paths)
        health = worker.health()
        assert health["status"] == "healthy", health
        events = worker.run(prompt=PROMPT, max_tokens=_N_TOKENS)
        check_order(events)
        assert events[-1]["type"] == "end", events[-1]
        assert worker.stop() == 0
    return f"{PROMPT}{text_of(events)!r}"


def it_finishes_an_accepted_job_when_stopped(built: Built) -> str:
    """The worker is PID 1, which only ends on signals that it handles itself."""
    with Container(built, "--port", "0") as worker:
        worker.ready()
        with worker.stream(prompt=PROMPT, max_tokens=_LONG, ignore_eos=True) as stream:
            events = stream.until("token")
            began_s = time.monotonic()
            code = worker.stop()
            took_s = time.monotonic() - began_s
            events += list(stream)
        check_order(events)
        assert events[-1]["type"] == "end", events[-1]
        assert events[-1]["tokens_sampled"] == _LONG
        assert code == 0, worker.stderr
    return f"exit 0 after {took_s:.1f} s, {_LONG} tokens"


def its_health_check_asks_the_port_that_is_served(built: Built) -> str:
    port = free_port()
    for arguments in ((), ("--port", "0")):
        with Container(built, *arguments, options=("--read-only", f"--env=LLORCH_PORT={port}")) as worker:
            worker.ready()
            assert worker.is_healthy() == (worker.port == port) == (not arguments)
            worker.stop()
    return "healthy on the port served, unhealthy beside it"


def it_replaces_a_killed_engine_and_leaves_no_zombie(built: Built) -> str:
    with Container(built, "--port", "0") as worker:
        worker.ready().kill_engine()
        check_order(worker.run(prompt=PROMPT, max_tokens=_N_TOKENS))
        worker.is_healthy()
        assert worker.zombies() == []
        assert worker.stop() == 0
    return "served again"


def it_writes_nothing_even_where_it_may(built: Built) -> str:
    # Podman gives the user's number a name in /etc/passwd by default.
    with Container(built, "--port", "0", options=("--passwd=false",)) as worker:
        worker.ready().run(prompt=PROMPT, max_tokens=_N_TOKENS)
        worker.is_healthy()
        changes = worker.changes()
        worker.stop()
    assert changes == [], changes
    return "no file changed"


def it_answers_once_in_the_terminal_as_any_user(built: Built) -> str:
    arguments = ("generate", "--model", default_file().name, *_SHORT, PROMPT)
    code, out, err = once(built, *arguments, options=("--user=4711:4711", *built.image.here))
    assert code == 0, err
    assert out.strip()
    return repr(out.strip())


def a_new_volume_takes_a_model_that_pip_is_needed_for(built: Built) -> str:
    """No model is on the host, and no pip is installed in the image."""
    arguments = ("generate", "--model", load_catalog(None).default.name, *_SHORT, PROMPT)
    answers = set()
    with new_volume(built.store) as volume:
        for more in (pip_mounts(built.store), ["--env=PIP_NO_INDEX=1"]):
            code, out, err = once(built, *arguments, options=(*built.image.here, *more), volume=volume)
            assert code == 0, err
            answers.add(out.strip())
    (answer,) = answers
    return repr(answer)


def without_its_gpu_it_refuses_in_one_line(built: Built) -> str:
    if not built.image.refusal:
        raise Skipped("this image takes the processor then")
    error = _only_error(*once(built, "--model", default_file().name))
    assert built.image.refusal in error["message"], error
    return str(error["message"])


def a_gpu_in_software_answers_as_the_processor_does(built: Built) -> str:
    if not built.image.has_software_gpu:
        raise Skipped("this image has none")
    arguments = ("--model", default_file().name, "--ctx-size", "256", "--max-tokens", "3", "--temperature", "0", PROMPT)
    answers = set()
    for device in ("cpu", "vulkan"):
        options = ("--env=GGML_VK_VISIBLE_DEVICES=0",)
        code, out, err = once(built, "generate", "--device", device, *arguments, options=options)
        assert code == 0, err
        answers.add(out.strip())
    (answer,) = answers
    assert answer
    return repr(answer)


def a_wrong_flag_is_exit_2(built: Built) -> str:
    code, _, err = once(built, "--model", "x.gguf", "--ctx-sise", "1")
    assert code == 2, (code, err)
    (line,) = err.splitlines()
    return line


def a_missing_model_is_exit_1_and_one_line(built: Built) -> str:
    error = _only_error(*once(built, "--model", "missing.gguf"))
    assert "/models" in error["message"]
    return f"{error['code']}: {error['message']}"


def _only_error(code: int, _: str, err: str) -> dict[str, str]:
    """The one line in the log of a worker that does not start."""
    assert code == 1, (code, err)
    (error,) = [line for line in map(json.loads, err.splitlines()) if line["level"] == "error"]
    return dict(error)
