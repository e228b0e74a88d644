"""Traces and their requests: the same for the same seed, of all routes, with every field that changes an answer."""

from pathlib import Path
from random import Random

import msgspec
import pytest

from tools.fire.asks import CHAT, COMPLETIONS, EXECUTE, MESSAGES, RESPONSES, SALTS, Ask, Asks
from tools.fire.trace import Cancel, Cut, Pause, draw, read, saved
from worker.wire.jobs import SamplingParams

N = 4000


def drawn(seed: int, n: int = N) -> list[Ask]:
    asks = Asks(Random(seed))
    return [asks.draw() for _ in range(n)]


@pytest.fixture(scope="module")
def asks() -> list[Ask]:
    return drawn(1)


def test_a_seed_gives_the_same_requests_again_which_have_seeds_and_of_which_some_repeat(asks: list[Ask]) -> None:
    assert drawn(1) == asks
    assert drawn(2, 20) != asks[:20]
    assert {ask.path for ask in asks} == {EXECUTE, COMPLETIONS, CHAT, RESPONSES, MESSAGES}
    assert 0.5 * N < len({ask.digest for ask in asks}) < 0.8 * N
    assert all("seed" in ask.body for ask in asks)
    assert {ask.body.get("cache_salt") for ask in asks} == set(SALTS)


def test_every_sampling_field_is_asked_for_at_execute(asks: list[Ask]) -> None:
    fields = {name for ask in asks if ask.path == EXECUTE for name in ask.body}
    assert fields >= set(SamplingParams.__struct_fields__)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (COMPLETIONS, {"n", "echo", "logprobs", "prompt_logprobs", "stream", "prediction", "guided_regex"}),
        (CHAT, {"n", "tools", "tool_choice", "top_logprobs", "response_format", "thinking_token_budget", "stream"}),
        (RESPONSES, {"instructions", "tools", "text", "reasoning", "stream"}),
        (MESSAGES, {"system", "tools", "thinking", "stop_sequences", "output_config", "stream"}),
    ],
)
def test_every_route_is_asked_for_its_own_fields(asks: list[Ask], path: str, names: set[str]) -> None:
    assert {name for ask in asks if ask.path == path for name in ask.body} >= names


def test_the_name_of_a_job_is_on_the_wire_and_neither_it_nor_a_salt_is_in_the_digest() -> None:
    ask = Ask(EXECUTE, {"prompt": "a", "max_tokens": 1})
    assert msgspec.json.decode(ask.encoded("it"))["job_id"] == "it"
    assert ask.digest == Ask(EXECUTE, {"max_tokens": 1, "prompt": "a"}).digest != Ask(CHAT, ask.body).digest
    assert ask.digest == Ask(EXECUTE, ask.body | {"cache_salt": "b"}).digest


def test_a_file_has_the_whole_trace_and_all_that_a_client_can_do_happens(tmp_path: Path) -> None:
    trace = draw(1, n_requests=60)
    assert trace.n_requests == 60
    assert read(saved(trace, tmp_path / "trace.json")) == trace == draw(1, n_requests=60)
    lives = [life for seed in range(20) for life in draw(seed).lives]
    assert {type(act.fate) for life in lives for act in life.acts} == {Cut, Cancel, Pause, type(None)}
    assert any(life.kills_ms for life in lives)
