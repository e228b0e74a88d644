"""Level `serving`: the same prompts through a running worker over HTTP, alone and under load of eight jobs."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations

import msgspec
import numpy as np
from numpy.typing import NDArray

from client.execute import Answer, Request
from client.worker import ServedWorker
from parity.answers import N_DRAWN, N_TOP, Parting, miss_at_parting, parting, parting_from, worst_draw
from parity.bounds import Bounds
from parity.compare import logsumexp
from parity.neighbours import N_NEIGHBOURS, NeighbourJob, Neighbours
from parity.report import Check, Level, Table, judged
from worker.wire.jobs import narrow

SEEDS = (7, 42, 2**64 - 1)
TEMPERATURE = narrow(0.8)
N_TOKENS = 16
N_UNSEEDED = 2
"""Prompts that are asked twice without a seed."""


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt by its number, and how it is continued."""

    number: int
    seed: int | None
    """None is greedy."""

    @property
    def decoding(self) -> str:
        return "greedy" if self.seed is None else f"seed {self.seed}"


Answers = dict[Question, Answer]


class Record(msgspec.Struct, frozen=True):
    """One job as a line of the transcript."""

    phase: str
    """alone, repeated, unseeded, beside; neighbour and what was to become of it."""
    request: Request
    seed: int | None
    """The seed that the worker reported."""
    tokens: tuple[int, ...]
    text: str
    stop_reason: str
    error: str

    @classmethod
    def of(cls, phase: str, request: Request, answer: Answer) -> "Record":
        return cls(phase, request, answer.seed, answer.tokens, answer.text, answer.stop_reason, answer.error)


@dataclass(frozen=True, slots=True)
class Served:
    """All answers. `alone` and `beside` have every question, `repeated` those with a seed."""

    alone: Answers
    repeated: Answers
    unseeded: tuple[tuple[Answer, Answer], ...]
    beside: Answers
    neighbours: tuple[NeighbourJob, ...]
    min_neighbours: int
    """The fewest neighbours that received tokens during one answer."""
    records: tuple[Record, ...]
    determinism: str
    """The worker's own word on determinism."""

    @property
    def answers(self) -> tuple[Answer, ...]:
        pairs = (answer for pair in self.unseeded for answer in pair)
        return (*self.alone.values(), *self.repeated.values(), *pairs, *self.beside.values())


@dataclass(frozen=True, slots=True)
class Expected:
    """The same file's answers in this process for each prompt; None is not compared."""

    tokens: Sequence[Sequence[int]] | None = None
    """Greedy continuations; they may go on after an end token."""
    first_rows: Sequence[NDArray[np.float32]] | None = None
    """Logits [n_vocab] of each first token."""
    ends: Collection[int] = frozenset()
    """The vocabulary's end tokens."""


def run(
    worker: ServedWorker,
    prompts: Sequence[str],
    expected: Expected,
    bounds: Bounds,
    *,
    n_tokens: int = N_TOKENS,
    kind: str | None = None,
) -> tuple[Level, tuple[Record, ...]]:
    """Ask every prompt greedily and with each of three seeds: alone, again, and under load of eight others; judge all
    answers. The records are the transcript.

    `expected` has an entry for each prompt. `kind`: as for `judge`; None: the worker's, which has the usual caches.
    Raises: ValueError where it has not, and when there are no prompts.
    """
    for known in (expected.tokens, expected.first_rows):
        if not prompts or (known is not None and len(known) != len(prompts)):
            raise ValueError(f"{len(prompts)} prompts; expectations of {len(known or prompts)}")
    served = _Asker(worker, prompts, n_tokens).ask_all()
    return judge(served, prompts, expected, bounds, kind or worker.health.kind), served.records


def judge(served: Served, prompts: Sequence[str], expected: Expected, bounds: Bounds, kind: str) -> Level:
    """The level that the answers make; `kind` names the special bounds: `Q4_1_cpu`."""
    n_turned = sum(answer.choices != served.beside[question].choices for question, answer in served.alone.items())
    same = f"{len(served.alone) - n_turned} of {len(served.alone)} answers are the same alone and under load"
    near = ", the others part no further than is allowed" if n_turned else ""
    summary = f"{same} {N_NEIGHBOURS} other jobs{near}; {len(served.records)} jobs ended as they should"
    verdicts = _Verdicts(served, prompts, expected, bounds, kind)
    return judged("serving", summary, list(verdicts.checks()), tables=[verdicts.table()])


# ── asking ───────────────────────────────────────────────────────────────────────────────────────


class _Asker:
    """Asks every prompt, numbers the jobs and keeps the records."""

    def __init__(self, worker: ServedWorker, prompts: Sequence[str], n_tokens: int) -> None:
        self._worker = worker
        self._prompts = prompts
        self._n_tokens = n_tokens
        self._records: list[Record] = []

    def ask_all(self) -> Served:
        """Ask greedily and with every seed, alone and under load; with a seed once more alone."""
        questions = [Question(number, seed) for number in range(len(self._prompts)) for seed in (None, *SEEDS)]
        alone = self._each(questions, "alone")
        repeated = self._each([question for question in questions if question.seed is not None], "repeated")
        unseeded = tuple(self._twice(number) for number in range(min(N_UNSEEDED, len(self._prompts))))
        with Neighbours(self._worker) as neighbours:
            beside = {question: neighbours.beside(partial(self._ask, question, "beside")) for question in questions}
        of_neighbours = (Record.of(f"neighbour, {job.ending}", job.request, job.answer) for job in neighbours.jobs)
        return Served(
            alone=alone,
            repeated=repeated,
            unseeded=unseeded,
            beside={question: answer for question, (answer, _) in beside.items()},
            neighbours=neighbours.jobs,
            min_neighbours=min(n_received for _, n_received in beside.values()),
            records=(*self._records, *of_neighbours),
            determinism=self._worker.health.verdict,
        )

    def _each(self, questions: Iterable[Question], phase: str) -> Answers:
        return {question: self._ask(question, phase) for question in questions}

    def _twice(self, number: int) -> tuple[Answer, Answer]:
        request = self._request(number, TEMPERATURE, None)
        return self._answer(request, "unseeded"), self._answer(request, "unseeded")

    def _ask(self, question: Question, phase: str) -> Answer:
        temperature = 0.0 if question.seed is None else TEMPERATURE
        return self._answer(self._request(question.number, temperature, question.seed), phase)

    def _request(self, number: int, temperature: float, seed: int | None) -> Request:
        return Request(
            job_id=f"parity-{len(self._records)}",
            prompt=self._prompts[number],
            max_tokens=self._n_tokens,
            temperature=temperature,
            logprobs=N_TOP,
            seed=seed,
            # All that can be drawn is then reported, and the draw can be checked.
            top_k=N_DRAWN if temperature else 0,
        )

    def _answer(self, request: Request, phase: str) -> Answer:
        answer = self._worker.ask(request)
        self._records.append(Record.of(phase, request, answer))
        return answer


# ── judging ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Verdicts:
    served: Served
    prompts: Sequence[str]
    expected: Expected
    bounds: Bounds
    kind: str

    def checks(self) -> Iterator[Check]:
        """The checks in the order in which they explain each other; the first broken check is the summary."""
        yield self._ends()
        yield self._neighbours()
        yield self._highest()
        if self.expected.first_rows is not None:
            yield self._first_rows(self.expected.first_rows)
        if self.expected.tokens is not None:
            yield self._in_process(self.expected.tokens)
        yield self._greedy_beside()
        for seed in SEEDS:
            yield from self._of_seed(seed)
        for one, other in combinations(SEEDS, 2):
            yield self._seeds_differ(one, other)
        yield from self._unseeded()

    def _ends(self) -> Check:
        wrong = [answer for answer in self.served.answers if answer.n_terminal != 1 or answer.error]
        wrong += [job.answer for job in self.served.neighbours if not job.is_right]
        note = f"{wrong[0].job_id}: {wrong[0].error or f'{wrong[0].n_terminal} terminal events'}" if wrong else ""
        return self.bounds.check("jobs that did not end as they should", len(wrong), "serving.wrong_ends", note=note)

    def _neighbours(self) -> Check:
        what = f"neighbours of {N_NEIGHBOURS} that received tokens during an answer, at least"
        return self.bounds.check(what, self.served.min_neighbours, "serving.company")

    def _highest(self) -> Check:
        answers = [*self._of(None, self.served.alone), *self._of(None, self.served.beside)]
        wrong = [
            (answer, position)
            for _, answer in answers
            for position, row in enumerate(answer.drawn)
            if not row.top or row.id != row.top[0].id
        ]
        note = f"{wrong[0][0].job_id}, token {wrong[0][1]}" if wrong else ""
        what = "greedy tokens that are not the most probable ones reported with them"
        return self.bounds.check(what, len(wrong), "serving.not_highest", note=note)

    def _first_rows(self, rows: Sequence[NDArray[np.float32]]) -> Check:
        errors = [
            (_first_row_error(answer, rows[question.number]), question)
            for question, answer in self._of(None, self.served.alone)
        ]
        error, worst = max(errors, key=lambda pair: pair[0])
        what = "log-probabilities of the first token, served against in-process"
        return self._special("logprob", what, error, note=self._name(worst))

    def _in_process(self, tokens: Sequence[Sequence[int]]) -> Check:
        partings = {
            question: parting_from(answer, tokens[question.number], self.expected.ends)
            for question, answer in self._of(None, self.served.alone)
        }
        return self._gap("in_process", "greedy tokens, served against in-process", partings)

    def _greedy_beside(self) -> Check:
        partings = {
            question: parting(answer, self.served.beside[question], self.expected.ends)
            for question, answer in self._of(None, self.served.alone)
        }
        return self._gap("beside", f"greedy tokens beside {N_NEIGHBOURS} jobs against alone", partings)

    def _gap(self, key: str, what: str, partings: dict[Question, Parting | None]) -> Check:
        """The worst parting in nats; 0 when nothing parts."""
        found = {question: each for question, each in partings.items() if each is not None}
        if not found:
            return self._special(key, f"{what}: gap where they part, nats", 0.0, note="none parts")
        worst = max(found, key=lambda question: found[question].gap)
        note = f"{len(found)} of {len(partings)} part; {self._name(worst)}, token {found[worst].position}"
        return self._special(key, f"{what}: gap where they part, nats", found[worst].gap, note=note)

    def _of_seed(self, seed: int) -> Iterator[Check]:
        yield self._reported(seed)
        yield self._honoured(seed)
        again = f"seed {seed}: asked again, by how much a draw misses the first answer's token"
        yield self._miss("repeat_draw", again, seed, self.served.repeated)
        beside = f"seed {seed}: beside {N_NEIGHBOURS} jobs against alone, by how much a draw misses the other's token"
        yield self._miss("beside_draw", beside, seed, self.served.beside)

    def _miss(self, key: str, what: str, seed: int, others: Answers) -> Check:
        """The worst of the answers alone against `others`; 0 when nothing parts."""
        misses = [
            (miss_at_parting(answer, others[question], seed, TEMPERATURE, self.expected.ends), question)
            for question, answer in self._of(seed, self.served.alone)
        ]
        miss, worst = max(misses, key=lambda pair: pair[0])
        return self._special(key, what, miss, note=self._name(worst) if miss else "none parts")

    def _reported(self, seed: int) -> Check:
        wrong = [(question, answer) for question, answer in self._rounds(seed) if answer.seed != seed]
        note = f"{self._name(wrong[0][0])}: {wrong[0][1].seed}" if wrong else ""
        what = f"seed {seed}: answers whose `started` has another seed"
        return self.bounds.check(what, len(wrong), "serving.wrong_seed", note=note)

    def _honoured(self, seed: int) -> Check:
        """Every token of every answer is the one that the seed draws from the reported probabilities."""
        draws = [(*worst_draw(answer, seed, TEMPERATURE), question) for question, answer in self._rounds(seed)]
        miss, position, worst = max(draws, key=lambda draw: draw[0])
        note = f"{self._name(worst)}, token {position}" if miss else ""
        what = f"seed {seed}: by how much its draws miss the served tokens"
        return self.bounds.check(what, miss, "serving.draw", note=note)

    def _seeds_differ(self, one: int, other: int) -> Check:
        pairs = zip(self._of(one, self.served.alone), self._of(other, self.served.alone), strict=True)
        n_differ = sum(mine.choices != yours.choices for (_, mine), (_, yours) in pairs)
        what = f"prompts that seeds {one} and {other} answer differently"
        return self.bounds.check(what, n_differ, "serving.seeds_differ", note=f"of {len(self.prompts)}")

    def _unseeded(self) -> Iterator[Check]:
        answers = [answer for pair in self.served.unseeded for answer in pair]
        misses = [worst_draw(answer, answer.seed, TEMPERATURE)[0] for answer in answers if answer.seed is not None]
        what = "no seed sent: by how much the draws of the reported seed miss the served tokens"
        yield self.bounds.check(what, max(misses, default=float("inf")), "serving.draw")
        n_differ = sum(one.choices != other.choices for one, other in self.served.unseeded)
        what = "prompts answered differently when asked twice without a seed"
        yield self.bounds.check(what, n_differ, "serving.unseeded_differ", note=f"of {len(self.served.unseeded)}")

    def table(self) -> Table:
        columns = ("prompt", "decoding", ">tokens", "in process", "asked again", f"beside {N_NEIGHBOURS} jobs", "end")
        rows = tuple(self._row(question, answer) for question, answer in self.served.alone.items())
        note = (
            "The gap is between the two tokens where answers part, in nats of the reported log-probabilities. "
            f"The worker's own word on determinism: {self.served.determinism}."
        )
        return Table("Served answers", columns, rows, note)

    def _row(self, question: Question, answer: Answer) -> tuple[str, ...]:
        ends, repeated = self.expected.ends, self.served.repeated.get(question)
        tokens = self.expected.tokens if question.seed is None else None
        return (
            self._shown(question.number),
            question.decoding,
            str(len(answer.tokens)),
            _described(parting_from(answer, tokens[question.number], ends)) if tokens is not None else "",
            _described(parting(answer, repeated, ends)) if repeated else "",
            _described(parting(answer, self.served.beside[question], ends)),
            answer.stop_reason or answer.error,
        )

    def _name(self, question: Question) -> str:
        return f"{self._shown(question.number)}, {question.decoding}"

    def _shown(self, number: int) -> str:
        text = self.prompts[number]
        return repr(text if len(text) <= 32 else f"{text[:31]}…")

    def _rounds(self, seed: int) -> list[tuple[Question, Answer]]:
        rounds = (self.served.alone, self.served.repeated, self.served.beside)
        return [pair for answers in rounds for pair in self._of(seed, answers)]

    def _of(self, seed: int | None, answers: dict[Question, Answer]) -> list[tuple[Question, Answer]]:
        return [(question, answer) for question, answer in answers.items() if question.seed == seed]

    def _special(self, key: str, what: str, value: float, note: str) -> Check:
        """Against the bound for this kind of file and device, else the general one."""
        return self.bounds.check(what, value, f"serving.{key}.{self.kind}", f"serving.{key}.other", note=note)


def _first_row_error(answer: Answer, row: NDArray[np.float32]) -> float:
    """Largest |reported - row's| log-probability of the tokens listed with the first one; inf without any."""
    log_sum = logsumexp(row)
    listed = answer.drawn[0].top if answer.drawn else ()
    return max((abs(top.logprob - (float(row[top.id]) - log_sum)) for top in listed), default=float("inf"))


def _described(found: Parting | None) -> str:
    return "the same" if found is None else f"parts at token {found.position}, {found.gap:.3g} nats"
