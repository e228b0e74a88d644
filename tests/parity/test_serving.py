"""The serving level: what it demands of answers, and that a real worker gives them and a lying one does not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client.child import NotServed
from client.execute import Answer, Drawn, Request, Top, unanswered
from client.worker import Health, ServedWorker
from parity.answers import N_DRAWN, N_TOP, Parting, miss_at_parting, parting, parting_from, worst_draw
from parity.bounds import Bounds
from parity.levels.serving import SEEDS, Expected, Question, Served, judge, run
from parity.llama.scoring import Scorer
from parity.neighbours import FLAGS, N_NEIGHBOURS, NeighbourJob
from parity.report import Level
from parity.setups import as_served
from tests.on_cpu import loaded_on_cpu
from tests.parity.relay import Event, Relay
from tests.parity.small_gguf import read_tensor, with_tensor
from worker.engine.sampling.sample import log_probabilities, sample, uniform
from worker.llama.invariance import has_own_products
from worker.wire.jobs import SamplingParams, narrow

PROMPTS = ("Once upon a time", "def quicksort(items):")
N_TOKENS = 8

EXACT, NEARLY = "Q4_1_cpu", "Q8_0_cpu"
"""Two kinds of file: the rows of the first are the same bits next to any others, those of the second are not."""


# ── made-up answers ──────────────────────────────────────────────────────────────────────────────


def row(token: int, logprobs: Mapping[int, float] | None = None) -> Drawn:
    """A drawn token and what its row lists, best first; by default the token alone."""
    listed = {token: -0.1} if logprobs is None else logprobs
    return Drawn(token, listed.get(token, -9.0), tuple(Top(*pair) for pair in listed.items()))


def answer(
    rows: Sequence[Drawn],
    *,
    stop_reason: str = "MAX_TOKENS",
    seed: int | None = 0,
    n_sampled: int | None = None,
    job_id: str = "job",
) -> Answer:
    """A job that came to its end."""
    n = len(rows) if n_sampled is None else n_sampled
    return Answer(job_id, seed, tuple(rows), "".join(f"<{row.id}>" for row in rows), stop_reason, n, "", 1)


def made(question: Question, *, drawn_with: int | None = None) -> Answer:
    """An answer of eight tokens; with a seed each is one of two equally probable ones."""
    seed = question.seed if drawn_with is None else drawn_with
    if seed is None:
        return answer([row(question.number + i, {question.number + i: -0.1, 99: -2.0}) for i in range(8)])
    rows = [row(1 + round(uniform(seed, i)), {1: -0.7, 2: -0.7}) for i in range(8)]
    return answer(rows, seed=question.seed if question.seed is not None else seed)


QUESTIONS = [Question(number, seed) for number in range(len(PROMPTS)) for seed in (None, *SEEDS)]
SEEDED = [question for question in QUESTIONS if question.seed is not None]


def neighbour(ending: str, answered: Answer) -> NeighbourJob:
    request = Request(job_id=answered.job_id, prompt="", max_tokens=1, temperature=1.0, logprobs=0)
    return NeighbourJob(request, ending, answered)  # type: ignore[arg-type]  # an Ending, spelled out by the caller


SERVED = Served(
    alone={question: made(question) for question in QUESTIONS},
    repeated={question: made(question) for question in SEEDED},
    unseeded=((made(Question(0, 100)), made(Question(0, 101))),),
    beside={question: made(question) for question in QUESTIONS},
    neighbours=(
        neighbour("runs to its end", answer([row(1)])),
        neighbour("is cancelled", replace(answer([row(1)]), stop_reason="", error="CANCELLED: by the client")),
        neighbour("is given up", replace(answer([row(1)]), stop_reason="", n_terminal=0)),
    ),
    min_neighbours=N_NEIGHBOURS,
    records=(),
    determinism=Health("Q4_1", 0, 0, "differs", ("in one step", "beside 7 others")).verdict,
)
EXPECTED = Expected(tokens=[range(8), range(1, 9)])


def judged(bounds: Bounds, served: Served, expected: Expected = EXPECTED, kind: str = EXACT) -> Level:
    return judge(served, PROMPTS, expected, bounds, kind)


def with_answer(question: Question, answered: Answer, phase: str = "beside") -> Served:
    """The made-up answers but one."""
    changed: dict[str, Any] = {phase: {**getattr(SERVED, phase), question: answered}}
    return replace(SERVED, **changed)


def altered(answered: Answer, position: int, drawn: Drawn) -> Answer:
    return replace(answered, drawn=(*answered.drawn[:position], drawn, *answered.drawn[position + 1 :]))


def test_answers_that_are_as_they_should_be_pass(bounds: Bounds) -> None:
    level = judged(bounds, SERVED)
    assert level.verdict == "pass", level.summary
    assert len(level.tables[0].rows) == len(QUESTIONS)
    assert level.tables[0].note.endswith("own word on determinism: differs in one step, beside 7 others.")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_that_was_not_sent_on_fails_and_is_named(bounds: Bounds, seed: int) -> None:
    lost = Question(1, seed)
    level = judged(bounds, with_answer(lost, replace(made(lost, drawn_with=5), seed=5)))
    assert level.verdict == "fail"
    assert level.summary.startswith(f"seed {seed}: answers whose `started` has another seed")
    assert repr(PROMPTS[1]) in level.summary


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("phase", ["alone", "repeated", "beside"])
def test_a_seed_that_is_reported_but_not_drawn_with_fails_and_is_named(bounds: Bounds, phase: str, seed: int) -> None:
    lost = Question(0, seed)
    level = judged(bounds, with_answer(lost, made(lost, drawn_with=5), phase))
    assert level.verdict == "fail"
    assert level.summary.startswith(f"seed {seed}: by how much its draws miss")


def test_one_seed_for_everybody_fails(bounds: Bounds) -> None:
    """Though every answer repeats."""
    same = {question: made(question, drawn_with=SEEDS[0]) for question in SEEDED}
    served = replace(SERVED, alone=SERVED.alone | same, repeated=same, beside=SERVED.beside | same)
    broken = [check.name for check in judged(bounds, served).checks if not check.holds]
    assert f"prompts that seeds {SEEDS[0]} and {SEEDS[1]} answer differently" in broken


def test_a_missing_seed_that_is_always_the_same_fails(bounds: Bounds) -> None:
    always = made(Question(0, 100))
    level = judged(bounds, replace(SERVED, unseeded=((always, always),)))
    assert "asked twice without a seed" in level.summary


def test_an_altered_token_fails_and_names_the_prompt_and_the_token(bounds: Bounds) -> None:
    """Also one that its row calls nearly as probable, where rows are the same bits."""
    question = Question(1, None)
    other = altered(made(question), 3, row(99, {99: -0.1, 4: -0.2}))
    level = judged(bounds, with_answer(question, other))
    assert level.verdict == "fail"
    assert "beside" in level.summary
    assert f"{PROMPTS[1]!r}, greedy, token 3" in level.summary
    level = judged(bounds, replace(with_answer(question, other, "alone"), beside={**SERVED.beside, question: other}))
    assert "in-process" in level.summary


def test_a_near_tie_may_turn_where_rows_are_nearly_the_same_bits_and_nothing_else_may(bounds: Bounds) -> None:
    question = Question(0, None)
    tie = altered(made(question), 7, row(99, {99: -0.5, 7: -0.6}))
    both = altered(made(question), 7, row(7, {7: -0.5, 99: -0.6}))
    served = replace(with_answer(question, tie), alone={**SERVED.alone, question: both})
    level = judged(bounds, served, kind=NEARLY)
    assert level.verdict == "pass"
    assert "7 of 8 answers are the same" in level.summary
    assert judged(bounds, served, kind=EXACT).verdict == "fail"
    assert judged(bounds, with_answer(question, tie), kind=NEARLY).verdict == "fail"


@pytest.mark.parametrize(
    "wrong",
    [
        neighbour("runs to its end", replace(answer([row(1)], job_id="that-one"), n_terminal=2)),
        neighbour("runs to its end", replace(answer([row(1)], job_id="that-one"), error="INFERENCE_FAILED: so")),
        neighbour("is cancelled", replace(answer([row(1)], job_id="that-one"), n_terminal=0)),
        neighbour("is given up", unanswered("that-one", NotServed("503"))),
    ],
)
def test_a_neighbour_that_ends_wrongly_fails_and_is_named(bounds: Bounds, wrong: NeighbourJob) -> None:
    level = judged(bounds, replace(SERVED, neighbours=(*SERVED.neighbours, wrong)))
    assert level.verdict == "fail"
    assert "that-one" in level.summary


# ── a real worker ────────────────────────────────────────────────────────────────────────────────


def expectations(path: Path, texts: Sequence[str]) -> Expected:
    setup = as_served(128)
    with loaded_on_cpu(path) as model:
        prompts = [model.tokenize(text) for text in texts]
        with Scorer(model, setup, n_ctx=256, n_threads=1) as scorer:
            tokens = [scorer.greedy(prompt, N_TOKENS) for prompt in prompts]
            first_rows = [scorer.logits(prompt)[-1] for prompt in prompts]
        return Expected(tokens, first_rows, frozenset(int(end) for end in model.ends))


def serve(path: Path) -> ServedWorker:
    return ServedWorker.of(path, *FLAGS, "--threads", "1", "--ctx-size", "4096", "--device", "cpu")


@pytest.fixture(scope="module")
def shallow(shallow_model: Path) -> Expected:
    """The first prompt's, of the model that is wrong or lied about below."""
    return expectations(shallow_model, PROMPTS[:1])


@pytest.fixture(scope="module")
def shallow_worker(shallow_model: Path) -> Iterator[ServedWorker]:
    with serve(shallow_model) as worker:
        yield worker


@pytest.mark.model
@pytest.mark.process
def test_a_worker_answers_as_in_process_alone_and_next_to_others(
    shallow_worker: ServedWorker, shallow_model: Path, bounds: Bounds
) -> None:
    assert shallow_worker.health.kind == (EXACT if has_own_products() else "Q4_1_ggml_cpu")
    level, records = run(shallow_worker, PROMPTS, expectations(shallow_model, PROMPTS), bounds, n_tokens=N_TOKENS)
    assert level.verdict == "pass", level.summary
    phases = [record.phase for record in records]
    assert phases.count("alone") == phases.count("beside") == len(QUESTIONS)
    assert phases.count("repeated") == len(SEEDED)
    assert {"unseeded", "neighbour, runs to its end", "neighbour, is cancelled", "neighbour, is given up"} < set(phases)
    neighbours = {record.request.job_id.split("-")[2] for record in records if "neighbour" in record.phase}
    assert neighbours == {str(number) for number in range(N_NEIGHBOURS)}
    verdict = shallow_worker.health.verdict
    assert verdict.split()[0] == ("same" if has_own_products() else "differs")
    assert level.tables[0].note.endswith(f"determinism: {verdict}.")


@pytest.mark.model
@pytest.mark.process
def test_a_worker_that_ignores_the_served_seed_fails_and_the_seed_is_named(
    shallow_worker: ServedWorker, shallow: Expected, bounds: Bounds
) -> None:
    """Even when `started` claims to have it."""

    def ask(body: Event) -> Event:
        return {name: value for name, value in body.items() if name != "seed"}

    def change(event: Event, asked: Event) -> Event:
        return {**event, "seed": asked["seed"]} if event["type"] == "started" and "seed" in asked else event

    with Relay(shallow_worker.url, ask=ask, event=change) as relay, ServedWorker.at(relay.url) as behind:
        level, _ = run(behind, PROMPTS[:1], shallow, bounds, n_tokens=N_TOKENS, kind=EXACT)
    assert level.verdict == "fail"
    broken = {check.name for check in level.checks if not check.holds}
    assert any(name.startswith(f"seed {SEEDS[0]}: by how much its draws miss") for name in broken), broken
    assert f"seed {SEEDS[0]}: asked again, by how much a draw misses the first answer's token" in broken
    assert not any("greedy" in name for name in broken)


@pytest.mark.model
@pytest.mark.process
def test_a_worker_on_other_weights_fails_against_this_file(
    shallow_model: Path, shallow: Expected, bounds: Bounds, tmp_path: Path
) -> None:
    """One norm is a quarter too large."""
    name = "blk.1.attn_norm.weight"
    values = read_tensor(shallow_model, name) * np.float32(1.25)
    path = with_tensor(shallow_model, tmp_path / "perturbed.gguf", name, values)
    with serve(path) as other:
        level, _ = run(other, PROMPTS[:1], shallow, bounds, n_tokens=4)
    assert level.verdict == "fail"
    assert level.summary.startswith("log-probabilities of the first token, served against in-process")
    assert repr(PROMPTS[0]) in level.summary


# ── the draw ─────────────────────────────────────────────────────────────────────────────────────


ONE, TWO = row(1), row(2, {2: -1.0, 3: -1.25})


@pytest.mark.parametrize(
    ("served", "other", "expected"),
    [
        (answer([ONE, TWO]), answer([ONE, row(3, {3: -1.0, 2: -1.5})]), Parting(1, 0.5)),
        (answer([ONE, TWO]), answer([ONE, row(9, {9: -1.0, 2: -1.0})]), Parting(1, inf)),
        (answer([ONE], stop_reason="EOS"), answer([ONE, row(2, {2: -1.0, 0: -1.5})]), Parting(1, 0.5)),
        (answer([ONE], stop_reason="EOS"), answer([ONE], stop_reason="EOS"), None),
        (answer([ONE]), answer([ONE, TWO]), Parting(1, inf)),
    ],
)
def test_answers_part_at_their_first_difference_and_an_end_is_a_choice_like_a_token(
    served: Answer, other: Answer, expected: Parting | None
) -> None:
    """The gap is what either row says; a token that a row does not list is no near-tie."""
    assert parting(served, other, ends={0}) == parting(other, served, ends={0}) == expected


@pytest.mark.parametrize(
    ("served", "tokens", "expected"),
    [
        (answer([ONE, TWO], stop_reason="EOS"), (1, 2, 0, 8), None),
        (answer([ONE, TWO], stop_reason="EOS"), (1, 2), None),
        (answer([ONE, TWO]), (1, 3), Parting(1, 0.25)),
        (answer([ONE, TWO]), (1, 2, 3), Parting(2, inf)),
        (answer([ONE], stop_reason="EOS"), (1, 2, 3), Parting(1, inf)),
        (answer([ONE], n_sampled=2), (1, 2), None),
    ],
)
def test_what_was_expected_is_followed_up_to_its_own_end(
    served: Answer, tokens: tuple[int, ...], expected: Parting | None
) -> None:
    """Text that was never shown is not missed."""
    assert parting_from(served, tokens, ends={0}) == expected


def drawn(logits: np.ndarray, sampling: SamplingParams, generated: list[int]) -> Drawn:
    """The worker's report of one draw."""
    token = sample(logits, sampling, generated)
    generated.append(token)
    logprob, top = log_probabilities(logits, token, N_TOP)
    return Drawn(token, logprob, tuple(Top(*pair) for pair in top))


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
def test_the_reported_probabilities_and_the_seed_give_the_token(seed: int) -> None:
    """Against the sampler itself, on rows of every shape; another seed's number falls elsewhere."""
    rng = np.random.default_rng(seed)
    sampling = SamplingParams(seed=seed, temperature=narrow(0.8), top_k=N_DRAWN)
    generated: list[int] = []
    rows = [drawn(rng.normal(0, 4, 300).astype(np.float32), sampling, generated) for _ in range(64)]
    served = answer(rows)
    assert worst_draw(served, seed, narrow(0.8))[0] < 1e-12
    assert worst_draw(served, seed ^ 1, narrow(0.8))[0] > 0.1


def test_a_runner_up_is_excused_when_it_nearly_took_the_last_place() -> None:
    """N_TOP tokens in a flat row: the first behind the drawn ones took the last one's place by a hair."""
    flat = {token: -3.0 - 1e-6 * token for token in range(N_TOP)}
    seed = next(seed for seed in range(1000) if uniform(seed, 0) * N_DRAWN > N_DRAWN - 1)
    last = answer([row(N_DRAWN - 1, flat)])
    swapped = flat | {N_DRAWN - 1: flat[N_DRAWN], N_DRAWN: flat[N_DRAWN - 1]}
    runner_up = answer([row(N_DRAWN, dict(sorted(swapped.items(), key=lambda pair: -pair[1])))])
    assert miss_at_parting(last, runner_up, seed, 1.0, ()) < 1e-6
    far = flat | {N_DRAWN: -5.0}
    assert miss_at_parting(answer([row(N_DRAWN - 1, far)]), runner_up, seed, 1.0, ()) == pytest.approx(0.054, abs=1e-3)
    elsewhere = next(seed for seed in range(1000) if uniform(seed, 0) < 0.1)
    assert miss_at_parting(answer([row(0, flat)]), runner_up, elsewhere, 1.0, ()) > 0.8
