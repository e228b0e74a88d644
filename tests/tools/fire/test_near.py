"""The near law: answers that part at a near-tie are right, and whatever else is changed in one is found.

A made model stands for the worker: its numbers depend on the tokens before, and are a little off under load. Its rows
have many near-ties.
"""

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import replace as changed
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.tools.fire.test_answers import body
from tools.fire.answers import Answer, answer_of
from tools.fire.asks import CHAT, COMPLETIONS, EXECUTE, MESSAGES, RESPONSES, Ask, Asks
from tools.fire.listed import BAN, N_DRAWN, N_TOP, has_list, listing
from tools.fire.models import NAMES
from tools.fire.near import Limits, Near, is_greedy, is_plain_draw, rows_of
from worker.sampling.sample import uniform

Json = dict[str, Any]

LIMITS = Limits(gap=0.02, draw=0.02)
NOISE = 0.002
"""The error of a logit. Its effect on two log-probabilities, and on a share, is below the limits."""
N_VOCAB, N_TOKENS = 40, 12
FAR = 5
"""Places in a row; tokens so far apart are no near-tie."""


@dataclass(frozen=True)
class Token:
    id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logits(model: int, prefix: tuple[int, ...]) -> list[float]:
    """About one token in eight is as probable as the next one, or nearly."""
    chance = Random(f"{model} {prefix}")
    steps = chance.sample(range(200), N_VOCAB)
    return [(step - step % 4) / 10 + chance.gauss(0, 1e-3) for step in steps]


def said(ask: Ask, model: int, noise: Random | None = None) -> list[Token]:
    """The model's answer; with noise, one under load."""
    tokens: list[Token] = []
    for at in range(N_TOKENS):
        row = logits(model, tuple(token.id for token in tokens))
        if noise:
            row = [logit + noise.uniform(-NOISE, NOISE) for logit in row]
        total = math.log(sum(map(math.exp, row)))
        order = sorted(range(N_VOCAB), key=lambda token, row=row: (-row[token], token))  # type: ignore[misc]
        pick = order[0] if ask.body["temperature"] == 0 else order[drawn(ask, at, [row[each] for each in order])]
        top = tuple((token, row[token] - total) for token in order[:N_TOP])
        tokens.append(Token(pick, row[pick] - total, top))
    return tokens


def drawn(ask: Ask, at: int, row: list[float]) -> int:
    """The place of the token that the seed draws from the first N_DRAWN."""
    weights = [math.exp((logit - row[0]) / ask.body["temperature"]) for logit in row[:N_DRAWN]]
    left = uniform(ask.body["seed"], at) * sum(weights)
    for place, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return place
    return N_DRAWN - 1


# ── answers on the wire ──────────────────────────────────────────────────────────────────────────


def letter(token: int) -> str:
    return chr(ord("A") + token)


def executed(tokens: list[Token], n_prompt: int) -> bytes:
    events: list[Json] = [{"type": "started", "seed": 3, "prompt_tokens": n_prompt}]
    for at, token in enumerate(tokens):
        top = [{"token": letter(other), "id": other, "logprob": logprob} for other, logprob in token.top]
        entry = {"token": letter(token.id), "id": token.id, "logprob": token.logprob, "top": top}
        events.append({"type": "token", "t": letter(token.id), "i": at, "logprobs": [entry]})
    end = {"type": "end", "stop_reason": "MAX_TOKENS", "tokens_sampled": len(tokens), "prompt_tokens": n_prompt}
    return body(EXECUTE, [*events, end])


def completed(tokens: list[Token], n_prompt: int) -> bytes:
    lists = {
        "tokens": [f"token_id:{token.id}" for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [{f"token_id:{other}": number for other, number in token.top} for token in tokens],
        "text_offset": [*range(len(tokens))],
    }
    text = "".join(letter(token.id) for token in tokens)
    choice = {"index": 0, "text": text, "logprobs": lists, "finish_reason": "length"}
    usage = {"prompt_tokens": n_prompt, "completion_tokens": len(tokens)}
    return json.dumps({"id": "x", "choices": [choice], "usage": usage}).encode()


def chatted(tokens: list[Token], n_prompt: int) -> bytes:
    def entry(token: int, logprob: float) -> Json:
        return {"token": letter(token), "bytes": [*letter(token).encode()], "logprob": logprob}

    chunks: list[Json] = []
    for token in tokens:
        content = [entry(token.id, token.logprob) | {"top_logprobs": [entry(*other) for other in token.top]}]
        choice = {"index": 0, "delta": {"content": letter(token.id)}, "logprobs": {"content": content}}
        chunks.append({"choices": [choice]})
    usage = {"prompt_tokens": n_prompt, "completion_tokens": len(tokens)}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": usage}
    return body(CHAT, [*chunks, last])


WIRES: dict[str, Callable[[list[Token], int], bytes]] = {EXECUTE: executed, COMPLETIONS: completed, CHAT: chatted}
ROUTES = pytest.mark.parametrize("path", WIRES)


def asked(path: str, temperature: float, seed: int) -> Ask:
    more = {} if path == EXECUTE else {"return_tokens_as_token_ids": True} if path == COMPLETIONS else {"stream": True}
    fields = {"temperature": temperature, "seed": seed, "max_tokens": N_TOKENS, "logprobs": N_TOP}
    return Ask(path, fields | more | ({"top_k": N_DRAWN} if temperature else {}))


def answered(ask: Ask, tokens: list[Token], n_prompt: int = 5) -> Answer:
    return answer_of(ask, 200, WIRES[ask.path](tokens, n_prompt))


ASKS = st.tuples(st.sampled_from([0.0, 0.7, 1.0, 1.6]), st.integers(0, 2**40))
MODELS = st.integers(0, 2**30)
CHANCES = st.integers(0, 2**30).map(Random)


def judged(ask: Ask, tokens: list[Token], alone: list[Token], **more: int) -> tuple[list[str], Near]:
    near = Near(LIMITS)
    return near.differences(ask, answered(ask, tokens, **more), answered(ask, alone)), near


def common(one: list[Token], other: list[Token]) -> int:
    """The tokens of the common beginning."""
    return next((at for at in range(N_TOKENS) if one[at].id != other[at].id), N_TOKENS)


@ROUTES
@given(ask=ASKS, model=MODELS, chance=CHANCES)
def test_an_answer_that_is_off_by_noise_is_right_and_so_is_each_beginning_of_it(
    path: str, ask: tuple[float, int], model: int, chance: Random
) -> None:
    asking = asked(path, *ask)
    assert is_greedy(asking) or is_plain_draw(asking)
    alone, under_load = said(asking, model), said(asking, model, chance)
    found, near = judged(asking, under_load, alone)
    assert found == []
    assert near.counts["near-ties"] == (common(alone, under_load) < N_TOKENS)
    for n_tokens in range(N_TOKENS):
        part = answered(asking, under_load[:n_tokens])
        assert Near(LIMITS).excesses(asking, part, answered(asking, alone)) == []
        assert Near(LIMITS).clashes(asking, part, answered(asking, alone[:5])) == []


def test_in_a_chat_a_space_and_a_number_sign_are_tokens_and_one_without_text_is_banned() -> None:
    """The first token has no text, and is never drawn; a space is the most probable one of the others."""
    asking = asked(CHAT, 1.0, 3)
    logprobs = {"": -0.5, " ": -1.0, "#": -2.0} | {chr(ord("a") + at): -3.0 - at / 4 for at in range(N_TOP - 3)}
    rows = [{"token": text, "bytes": [*text.encode()], "logprob": logprob} for text, logprob in logprobs.items()]
    kept = [logprob for text, logprob in logprobs.items() if text][:N_DRAWN]
    share = math.exp(kept[0]) / sum(map(math.exp, kept))
    picks = {}
    for text in (" ", "#"):
        entry = next(row for row in rows if row["token"] == text) | {"top_logprobs": rows}
        choice = {"index": 0, "delta": {"content": text}, "logprobs": {"content": [entry]}}
        last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
        picks[text] = answer_of(asking, 200, body(CHAT, [{"choices": [choice]}, last]))
    for seed in range(200):
        with_seed = Ask(CHAT, asking.body | {"seed": seed})
        away = abs(uniform(seed, 0) - share)
        found = Near(LIMITS).differences(with_seed, picks["#"], picks[" "])
        if uniform(seed, 0) < share - LIMITS.draw - 1e-9:
            assert found
        elif away < LIMITS.draw - 1e-9:
            assert not found


def test_the_made_model_parts_by_noise_often_enough() -> None:
    chance, asking = Random(1), asked(EXECUTE, 0.0, 1)
    n_parted = sum(common(said(asking, model), said(asking, model, chance)) < N_TOKENS for model in range(50))
    assert 5 < n_parted < 45


@ROUTES
@given(ask=ASKS, model=MODELS, chance=CHANCES)
def test_a_number_that_is_too_far_away_is_found(path: str, ask: tuple[float, int], model: int, chance: Random) -> None:
    """It may be in any row of the common beginning or of the first token that differs, at any place of the row."""
    asking = asked(path, *ask)
    alone, wrong = said(asking, model), said(asking, model, chance)
    at = chance.randint(0, min(common(alone, wrong), N_TOKENS - 1))
    place = chance.randrange(N_TOP)
    away = chance.choice([-1, 1]) * (LIMITS.gap + 2 * NOISE + chance.random())
    token, number = wrong[at].top[place]
    assume(place < N_TOP - 1 or away > 0)  # the last one may have left the list by as much
    own = number + away if token == wrong[at].id else wrong[at].logprob
    top = [*wrong[at].top[:place], (token, number + away), *wrong[at].top[place + 1 :]]
    wrong[at] = changed(wrong[at], logprob=own, top=tuple(sorted(top, key=lambda pair: -pair[1])))
    found, _ = judged(asking, wrong, alone)
    assert found
    part = answered(asking, wrong[: at + 1])
    assert Near(LIMITS).excesses(asking, part, answered(asking, alone))


@ROUTES
@given(ask=ASKS, model=MODELS, at=st.integers(0, N_TOKENS - 1), chance=CHANCES)
def test_a_token_that_is_no_near_tie_is_found(
    path: str, ask: tuple[float, int], model: int, at: int, chance: Random
) -> None:
    """The rows are right, but the token is not the one that they and the seed give."""
    asking = asked(path, *ask)
    alone = said(asking, model)
    row = alone[at].top
    place = [token for token, _ in row].index(alone[at].id)
    far = [other for other in range(N_DRAWN) if abs(other - place) >= FAR]
    other, number = row[chance.choice(far)]
    assume(abs(number - alone[at].logprob) > 2 * LIMITS.gap)
    if asking.body["temperature"]:
        shares = [math.exp(each / asking.body["temperature"]) for _, each in row[:N_DRAWN]]
        begin, end = sorted((place, [token for token, _ in row].index(other)))
        between = [at for at in range(begin + 1, end) if abs(row[at][1] - number) > LIMITS.gap]
        assume(sum(shares[at] for at in between) / sum(shares) > LIMITS.draw)
    wrong = [*alone[:at], changed(alone[at], id=other, logprob=number), *alone[at + 1 :]]
    found, near = judged(asking, wrong, alone)
    assert found
    assert "no near-tie" in found[0]
    assert not near.counts["near-ties"]


@ROUTES
@given(ask=ASKS, models=st.tuples(MODELS, MODELS))
def test_an_answer_that_belongs_to_another_request_is_found(
    path: str, ask: tuple[float, int], models: tuple[int, int]
) -> None:
    assume(models[0] != models[1])
    asking = asked(path, *ask)
    found, _ = judged(asking, said(asking, models[1]), said(asking, models[0]))
    assert found


@ROUTES
@given(model=MODELS, n_tokens=st.integers(0, N_TOKENS - 1))
def test_an_answer_that_ends_early_or_late_is_found_unless_something_else_is_as_probable(
    path: str, model: int, n_tokens: int
) -> None:
    """An end that is not listed is taken for a token that is: one whose neighbour in the row is near."""
    asking = asked(path, 0.0, 1)
    alone = said(asking, model)
    later = alone[n_tokens : n_tokens + 4]
    assume(all(row.top[0][1] - row.top[1][1] > LIMITS.gap for row in later))
    found, _ = judged(asking, alone[:n_tokens], alone)
    assert found
    found, _ = judged(asking, alone, alone[:n_tokens])
    assert found


@ROUTES
def test_after_a_near_tie_the_form_counts(path: str) -> None:
    """Another number of the prompt's tokens, more tokens than may be, no end and two ends, and an odd reason."""
    asking = asked(path, 0.0, 1)
    chance = Random(2)
    model = next(model for model in range(99) if common(said(asking, model), said(asking, model, Random(2))) < 6)
    alone, under_load = said(asking, model), said(asking, model, chance)
    assert judged(asking, under_load, alone)[0] == []
    assert any("prompt has 6 tokens" in fault for fault in judged(asking, under_load, alone, n_prompt=6)[0])
    longer = [*under_load, *under_load[-1:]]
    assert any(f"at most {N_TOKENS}" in fault for fault in judged(asking, longer, alone)[0])
    right = WIRES[path](under_load, 5)
    odd = right.replace(b'"MAX_TOKENS"', b'"X"').replace(b'"length"', b'"X"')
    assert Near(LIMITS).differences(asking, answer_of(asking, 200, odd), answered(asking, alone))
    if asking.is_stream:
        endless = right[: right.rindex(b"data: ")]
        assert Near(LIMITS).differences(asking, answer_of(asking, 200, endless), answered(asking, alone))


def test_the_second_of_two_choices_is_judged_by_the_next_seed() -> None:
    counts: Counter[str] = Counter()
    asking = Ask(COMPLETIONS, asked(COMPLETIONS, 1.0, 5).body | {"n": 2})
    for model in range(60):
        wholes = []
        for noise in (Random(model), None):
            choices = [
                json.loads(completed(said(asked(COMPLETIONS, 1.0, seed), model, noise), 5))["choices"][0]
                for seed in (5, 6)
            ]
            choices[1]["index"] = 1
            usage = {"prompt_tokens": 5, "completion_tokens": 2 * N_TOKENS}
            wholes.append(answer_of(asking, 200, json.dumps({"choices": choices, "usage": usage}).encode()))
        near = Near(LIMITS)
        assert near.differences(asking, *wholes) == []
        counts += near.counts
    assert counts["near-ties"] > 10


# ── answers without a list ───────────────────────────────────────────────────────────────────────


def message(text: str) -> Answer:
    usage = {"input_tokens": 5, "output_tokens": 2}
    content = [{"type": "text", "text": text}]
    whole = {"id": "m", "content": content, "stop_reason": "end_turn", "usage": usage}
    return answer_of(Ask(MESSAGES, {}), 200, json.dumps(whole).encode())


@given(n_same=st.integers(0, 60), n_other=st.integers(0, 60), n_times=st.integers(1, 3))
def test_few_requests_without_a_list_part_however_often_they_are_repeated(
    n_same: int, n_other: int, n_times: int
) -> None:
    near = Near(LIMITS)
    for text, n in (("a", n_same), ("b", n_other)):
        for number in range(n):
            ask = Ask(MESSAGES, {"max_tokens": 9, "seed": number, "system": text})
            for _ in range(n_times):
                assert near.differences(ask, message(text), message("a")) == []
    assert bool(near.of_all()) == (n_other > max(3, 0.1 * (n_same + n_other)))


# ── requests ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def asks() -> list[Ask]:
    drawing = Asks(Random(4))
    return [listing(drawing.draw()) for _ in range(2000)]


def test_requests_list_their_tokens_wherever_they_can(asks: list[Ask]) -> None:
    for path in (EXECUTE, COMPLETIONS, CHAT, RESPONSES, MESSAGES):
        listed = {has_list(ask) for ask in asks if ask.path == path}
        assert listed == {EXECUTE: {True}, COMPLETIONS: {True}, CHAT: {True, False}}.get(path, {False})
    for ask in filter(has_list, asks):
        assert N_TOP in (ask.body["logprobs"], ask.body.get("top_logprobs"))
        assert "echo" not in ask.body


def test_the_choice_is_judged_for_most_of_them(asks: list[Ask]) -> None:
    listed = [*filter(has_list, asks)]
    assert sum(map(is_greedy, listed)) > 0.2 * len(listed)
    assert sum(map(is_plain_draw, listed)) > 0.25 * len(listed)
    assert not any(is_greedy(ask) and is_plain_draw(ask) for ask in asks)
    assert not any(is_greedy(ask) or is_plain_draw(ask) for ask in asks if ask.body.get("logit_bias", {}).get("9") == 1)


def test_listing_a_request_twice_is_listing_it_once(asks: list[Ask]) -> None:
    """A ban wins over a bias."""
    for ask in asks:
        assert listing(ask).body.get("logprobs") == ask.body.get("logprobs")
    biased = Ask(EXECUTE, {"prompt": "a", "temperature": 0.0, "logit_bias": {"0": 20.0}})
    assert listing(biased).body["logit_bias"]["0"] == BAN


def test_the_limits_are_those_of_parity_for_the_type_of_the_matrices() -> None:
    assert {Limits.of(name, has_own_kernels=True) for name in NAMES} == {Limits(gap=0.02, draw=0.02)}
    assert Limits.of("default", has_own_kernels=True) == Limits(gap=0, draw=0)


def test_limits_are_wider_where_ggml_computes_attention() -> None:
    assert {Limits.of(name, has_own_kernels=False) for name in NAMES} == {Limits(gap=0.15, draw=0.05, parted=0.5)}
    assert Limits.of("default", has_own_kernels=False) == Limits(gap=1.0, draw=0.5, parted=0.5)


def test_an_answer_lists_the_same_rows_streamed_and_whole() -> None:
    tokens = said(asked(EXECUTE, 0.0, 1), 1)
    lists = [rows_of(asked(path, 0.0, 1), answered(asked(path, 0.0, 1), tokens)) for path in WIRES]
    assert [{number: len(rows) for number, rows in each.items()} for each in lists] == [{"0": N_TOKENS}] * 3
    assert len({tuple(row.logprob for row in each["0"]) for each in lists}) == 1
