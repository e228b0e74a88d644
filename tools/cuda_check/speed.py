"""The speed of a model on a device: for a client (reading prompts, one stream, 32 streams), and step by step.

Owns what is asked and which numbers are read off. What a client sees comes from a worker of its own over HTTP
(tools/bench); greedy, each prompt another one, without prompt lookup: what is measured is the model, not how well its
text repeats itself. Steps are timed in this process.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec
import uvloop

from client.child import without_settings
from tools.bench.answers import Answer, Ask, per_s, whole_rate
from tools.bench.load import Server, play
from tools.bench.prompts import Prompts
from tools.bench.servers import our_worker, served
from tools.bench.steps import step_costs
from tools.cuda_check.report import Figure
from worker.config.engine import configure
from worker.config.settings import Settings

N_STREAMS = 32
_CELLS = 8192
"""Enough for all streams, and half as much memory for them as for a model of 7 billion weights in 4 bits."""
_STREAM_CELLS = 512
"""The cells for a stream of `step_figures`: no stream has to pause, even with the smallest chunks of prompts."""
_SEED = 1


class FailedRequestError(Exception):
    """A request did not get its answer."""


@dataclass(frozen=True, slots=True)
class Load:
    """The amount of work; words are those of the prompt."""

    n_times: int = 3
    """One stream after another: a number is their median."""
    n_read_words: int = 400
    """The words of the prompts whose reading is timed."""
    n_words: int = 64
    n_tokens: int = 96


USUAL, LARGE, SMALL = Load(), Load(n_times=1, n_tokens=48), Load(n_times=1, n_read_words=32, n_words=8, n_tokens=8)
"""The loads for the default model, for one that takes a CPU a tenth of a second per token, and for testing the
round."""


def measure(model: Path, device: str, load: Load) -> list[Figure]:
    """Every measure of the model on the device. Raises: FailedRequestError, NotStarted, NotReached."""
    found = uvloop.run(_measure(model, device, load))
    return [msgspec.structs.replace(figure, device=device, model=model.name) for figure in found]


def step_figures(model: Path, device: str, n_streams: int, *, n_rounds: int) -> list[Figure]:
    """The time of a decode step of these streams and of its llama_decode: the rest is the engine's work. Raises: see
    load."""
    config = configure(Settings(device=device, parallel=n_streams, ctx_size=n_streams * _STREAM_CELLS), model)
    costs = step_costs(config, n_streams, n_rounds)
    return [
        Figure(what=f"{what} of {n_streams}", value=value_ms, unit="ms", device=device, model=model.name)
        for what, value_ms in (("step", costs.step_ms), ("llama_decode", costs.decode_ms))
    ]


async def _measure(model: Path, device: str, load: Load) -> list[Figure]:
    prompts = Prompts(_SEED)

    def asks(n_times: int, n_words: int, n_tokens: int) -> list[Ask]:
        return [Ask(prompt=prompts.of(n_words), n_tokens=n_tokens) for _ in range(n_times)]

    async with _worker(model, device) as server:
        # The first use of each kernel, and of each size of a batch, is not what later ones cost.
        await _played(server, asks(1, load.n_read_words, load.n_tokens))
        await _played(server, asks(N_STREAMS, load.n_words, load.n_tokens))
        read = await _played(server, _in_turn(asks(load.n_times, load.n_read_words, 2)))
        alone = await _played(server, _in_turn(asks(load.n_times, load.n_words, load.n_tokens)))
        together = await _played(server, asks(N_STREAMS, load.n_words, load.n_tokens))
    first_ms = 1000 * median(answer.ttft_s for answer in read)
    return [
        Figure(what="prompt", value=median(per_s(answer.n_prompt, answer.ttft_s) for answer in read), unit="tokens/s"),
        Figure(what="first token", value=first_ms, unit="ms"),
        Figure(what="1 stream", value=median(answer.tokens_per_s for answer in alone), unit="tokens/s"),
        Figure(what=f"{N_STREAMS} streams", value=whole_rate(together), unit="tokens/s"),
    ]


@asynccontextmanager
async def _worker(model: Path, device: str) -> AsyncIterator[Server]:
    flags = ["--device", device, "--parallel", str(N_STREAMS), "--ctx-size", str(_CELLS), "--prompt-lookup", "off"]
    with TemporaryDirectory(prefix="llorch-check-") as logs:
        async with served(our_worker(model, flags), Path(logs), without_settings()) as server:
            yield server


def _in_turn(asks: list[Ask]) -> list[Ask]:
    return [replace(ask, phase=phase) for phase, ask in enumerate(asks)]


async def _played(server: Server, asks: Sequence[Ask]) -> list[Answer]:
    answers = await play(server, asks)
    for problem in _problems(asks, answers):
        raise FailedRequestError(problem)
    return answers


def _problems(asks: Sequence[Ask], answers: Sequence[Answer]) -> Iterator[str]:
    for ask, answer in zip(asks, answers, strict=True):
        if answer.error:
            yield answer.error
        elif answer.n_tokens != ask.n_tokens:
            yield f"{answer.n_tokens} tokens came instead of {ask.n_tokens}"
