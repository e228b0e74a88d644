"""The main job on the real model: streamed as it is made, many at once, right text, right ends."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.backends.choice import chosen
from tests.worker_process import Event, Stream, WorkerProcess, check_order, serving, text_of
from worker.config.engine import configure
from worker.config.engine_settings import Configure
from worker.config.settings import Settings
from worker.engine.step import Slice, Step
from worker.models.loading.load import load_runner
from worker.wire.jobs import SamplingParams, SlotId

pytestmark = [pytest.mark.process, pytest.mark.model]

CHAT = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
STORY = "Once upon a time, in a small village by the sea, there lived"


worker = serving("model_path", "--ctx-size", "8192", "--threads", "2")


def whole(stream: Stream) -> list[Event]:
    with stream:
        return list(stream)


def decode_steps(worker: WorkerProcess) -> float:
    return worker.metrics()['worker_steps_total{kind="decode"}']


def test_the_warm_up_does_not_change_the_first_answer(worker: WorkerProcess, model_path: Path) -> None:
    """The first answer of a fresh worker, its second, and llama.cpp's own without any warm-up are one text."""
    first = worker.text(prompt=STORY, max_tokens=12)
    assert worker.text(prompt=STORY, max_tokens=12) == first
    settings = Settings(threads=2, ctx_size=8192, device=chosen().backend.test_backend)
    assert cold_greedy_text(configure(settings, model_path), STORY, 12) == first


def cold_greedy_text(config: Configure, prompt: str, n_tokens: int) -> str:
    """Greedy text from slot 1, which the warm-up (slot 0) never touched."""
    loaded = load_runner(config, lambda _: None)
    try:
        tokens = loaded.model.tokenize(prompt)
        greedy = SamplingParams(seed=0, temperature=0.0)
        (sampled,) = loaded.runner.run(Step("prefill", (Slice(SlotId(1), 0, tokens, greedy),)))
        pieces = [sampled.piece]
        for position in range(len(tokens), len(tokens) + n_tokens - 1):
            (sampled,) = loaded.runner.run(Step("decode", (Slice(SlotId(1), position, (sampled.token,), greedy),)))
            pieces.append(sampled.piece)
        return b"".join(pieces).decode()
    finally:
        loaded.runner.close()


def test_the_first_token_arrives_before_the_sixteenth_of_64_is_decoded(worker: WorkerProcess) -> None:
    before = decode_steps(worker)
    with worker.client() as client, worker.stream(prompt=STORY, max_tokens=64) as stream:
        client.get("/livez")  # the connection that will ask is open before the answer begins
        stream.until("token")
        made = decode_steps(worker) - before
        rest = list(stream)
    assert made < 16
    assert rest[-1]["tokens_sampled"] == 64


def test_eight_jobs_share_their_steps_and_answer_as_alone(worker: WorkerProcess) -> None:
    """Most of the greedy steps of these prompts are near-ties: a rounding error would show. The last three are not.

    A CPU computes a row in the same way alone and in a batch while a sequence's cells lie in order, which a neighbour's
    end can change: docs/determinism.md. The first to arrive ends a step or two before the others.
    """
    prompts = ["Music", "Two men", "Water is", "The Earth", "Coffee", "Books", "Mars", "Salt is"]
    alone = [worker.run(prompt=prompt, max_tokens=32) for prompt in prompts]
    before = decode_steps(worker)
    streams = [worker.stream(prompt=prompt, max_tokens=32) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(whole, streams))
    steps = decode_steps(worker) - before
    assert [text_of(events) for events in together] == [text_of(events) for events in alone]
    assert all(events[-1]["tokens_sampled"] == 32 for events in together)
    assert steps <= 1.3 * 32


@pytest.mark.parametrize("n_tokens", [1, 100, 1000])
@pytest.mark.usefixtures("default_model")
def test_prompts_of_any_length_are_counted_exactly(worker: WorkerProcess, n_tokens: int) -> None:
    events = worker.run(prompt="Hello" + " hello" * (n_tokens - 1), max_tokens=4)
    check_order(events)
    assert events[0]["prompt_tokens"] == events[-1]["prompt_tokens"] == n_tokens
    assert events[-1]["tokens_sampled"] == 4


@pytest.mark.usefixtures("default_model")
def test_two_hundred_tokens_are_sensible_text(worker: WorkerProcess) -> None:
    events = worker.run(prompt=STORY, max_tokens=200, temperature=0.7, seed=7)
    check_order(events)
    words = text_of(events).split()
    assert events[-1]["tokens_sampled"] == 200 or events[-1]["stop_reason"] == "EOS"
    assert len(set(words)) > len(words) / 3 > 20
    assert {"the", "a", "and"} <= {word.lower().strip(".,") for word in words}
    assert all(len(word) < 30 and word.isprintable() for word in words)


@pytest.mark.parametrize("prompt", ["你好世界", "Hello 👋 World 🌍", "Mixed: 日本語 English العربية"])
def test_utf8_prompts_stream_valid_text(worker: WorkerProcess, prompt: str) -> None:
    """TV-261, M0-W-1824. Sampled text may hold a broken sequence of the model's own making; greedy text does not."""
    events = worker.run(prompt=prompt, max_tokens=20, temperature=0.7, seed=42)
    check_order(events)
    assert "\ufffd" not in text_of(events)
