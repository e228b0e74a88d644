"""A router beside a real worker: what it is told is what the worker has, also when the engine dies under it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kv_listener import Batch, Listener, listening
from tests.kv_mirror import Mirror, blocks_of, unpacked
from tests.kv_mirror import Path as Block
from tests.worker_process import WorkerProcess, eventually, serve_default

pytestmark = pytest.mark.process

STORY = "The fisherman mended his nets while the gulls cried over the harbour and the tide went out. " * 8
PROMPTS = (
    STORY + "Then a boat came in, with three men aboard who had not been seen for seven years, and nobody knew them.",
    STORY + "His wife stood at the window of their house and counted the sails, one after the other, until dark.",
    "Far away, in a town without a harbour, a boy had never heard of any of this and was reading about whales.",
)
"""Each has more than 16 tokens that no other has: less is not worth a copy."""


def mirrored(batches: list[Batch]) -> Mirror:
    mirror = Mirror()
    for _, batch in batches:
        mirror.hear_batch(batch)
    return mirror


def ask(worker: WorkerProcess) -> None:
    for prompt in PROMPTS:
        worker.run(prompt=prompt, max_tokens=1)


def expected_of(worker: WorkerProcess) -> set[Block]:
    """A token that nothing follows is not computed, so all that is are the prompts."""
    found: set[Block] = set()
    for prompt in PROMPTS:
        found |= blocks_of(worker.post("/tokenize", json={"prompt": prompt}).json()["tokens"])
    return found


def is_told(listener: Listener, expected: set[Block]) -> bool:
    """The blocks in the KV memory and, once the worker has tested itself, among the copies."""
    mirror = mirrored(listener.replayed(0))
    return mirror.blocks("GPU") | mirror.blocks("CPU") == expected


@pytest.mark.model
def test_events_have_the_tokens_of_the_prompts_and_again_after_the_engine_was_killed(any_model: Path) -> None:
    with (
        serve_default(any_model, "--ctx-size", "2048", "--kv-events", "tcp://127.0.0.1:0") as worker,
        listening(worker.listening().wait_for("kv_events_listening")) as listener,
    ):
        worker.wait_for("ready")
        expected = expected_of(worker)
        assert len(expected) > 10
        ask(worker)
        eventually(lambda: is_told(listener, expected))
        before = listener.replayed(0)

        worker.engine.send_signal(signal.SIGKILL)
        worker.wait_for("model_load_complete")
        gone = listener.replayed(len(before))
        assert [{"type": "AllBlocksCleared"}] in [unpacked(batch)[1] for _, batch in gone]
        restored = mirrored(listener.replayed(0))
        assert restored.blocks("GPU") == set()
        assert restored.blocks("CPU") <= expected, "what the next engine has found of the copies"
        ask(worker)
        eventually(lambda: is_told(listener, expected))

        all_batches = listener.replayed(0)
        assert [number for number, _ in all_batches] == list(range(len(all_batches))), "numbers go on"
        assert all_batches[: len(before)] == before
        heard = [listener.next()]
        while heard[-1] != all_batches[-1]:
            heard.append(listener.next())
        assert heard == all_batches[heard[0][0] :], "what is heard is what is replayed"
        assert worker.metrics()["worker_kv_event_batches_total"] >= len(all_batches)


def test_without_pyzmq_there_is_one_line_that_says_what_to_install() -> None:
    script = "import sys; sys.modules['zmq'] = None; from worker.__main__ import main; main()"
    found = subprocess.run(
        [sys.executable, "-c", script, "--model", "m.gguf", "--kv-events", "tcp://127.0.0.1:0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert found.returncode == 2
    assert "--kv-events needs pyzmq: pip install pyzmq, or pip install -e '.[kv-events]' in a checkout" in found.stderr
