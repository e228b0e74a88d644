"""What constrained output costs on this machine, and what it saves: masks, decode steps, whole answers.

    .venv/bin/python scripts/constraint_costs.py MODEL.gguf [LARGE_VOCABULARY.gguf] [THREADS]

Prints the time and memory to read a vocabulary, of twenty ordinary schemas the time to compile each and its masks, a
constrained decode step against a free one, and the schemas' answers against free text. The second file, which may have
a vocabulary and no weights, is asked for the first two only. Measure on an idle machine, and more than once.
"""

import json
import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
from llama_cpp import llama_cpp as capi

from worker.config.settings import Settings
from worker.engine.backend import LoadedModel, Slice, Step
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.front.client import configure
from worker.llama.buffers import Watch
from worker.llama.constraint import Constraint, Constraints
from worker.llama.devices import choose_device, devices
from worker.llama.library import open_library
from worker.llama.load import load_model
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.wire.messages import JobKey, Outbound, Sampling, SlotId, StepDone, Submit, TokenId, Violation

N_ROUNDS = 3
N_WALKS = 5
"""Random answers of each schema, whose masks are timed."""
STEP_TOKENS = 40
MAX_TOKENS = 160
WIDTHS = (1, 8)
ANYTHING = "(?s:.*)"
GREEDY = Sampling(seed=0, temperature=0.0)
UNENDING = Sampling(seed=0, temperature=0.0, min_tokens=MAX_TOKENS)

Json = dict[str, Any]


def main(path: str, large: str = "", threads: str = "0") -> None:
    for each in filter(None, (path, large)):
        measure_vocabulary(Path(each))
    settings = Settings(
        model=path, device="cpu", threads=int(threads), ctx_size=8192, parallel=2 * max(WIDTHS), prompt_lookup="off"
    )
    model = load_model(configure(settings, Path(path)), lambda _: None)
    for width in WIDTHS:
        measure_steps(model, width)
    bench = Bench(model, EngineConfig.of(configure(settings, Path(path)), model))
    measure_answers(bench)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


# ── vocabulary, compilation, masks ───────────────────────────────────────────────────────────────


def measure_vocabulary(path: Path) -> None:
    with vocabulary_of(path) as model:
        before_bytes, began_s = resident_bytes(), time.perf_counter()
        constraints = Constraints(model)
        took_s, more_bytes = time.perf_counter() - began_s, resident_bytes() - before_bytes
        say(f"{path.name}: {model.n_vocab} tokens are read in {took_s:.2f} s and take {more_bytes / 2**20:.0f} MiB")
        compile_ms, masks_us, forced_us = [], [], []
        for name, schema in SCHEMAS.items():
            began_s = time.thread_time()
            constrained(constraints.constrain(submit(schema))).close()
            compile_ms.append(1000 * (time.thread_time() - began_s))
            own_us = []
            for seed in range(N_WALKS):
                walk = Walk(constrained(constraints.constrain(submit(schema))), model, seed)
                own_us += walk.masks_us
                forced_us += walk.forced_us
            masks_us += own_us
            say(f"  {name:14} compiled in {compile_ms[-1]:6.2f} ms, masks {quantiles(own_us)}")
        say(f"  compiled in {statistics.median(compile_ms):.2f} ms (median), {max(compile_ms):.2f} ms at most")
        say(f"  masks of all: {quantiles(masks_us)}; forced runs: {quantiles(forced_us)}")


class Walk:
    """One random answer: at each choice the processor time of the mask, behind each token that of what is forced."""

    def __init__(self, constraint: Constraint, model: Model, seed: int) -> None:
        self.masks_us: list[float] = []
        self.forced_us: list[float] = []
        chance = np.random.default_rng(seed)
        n_tokens = self._forced(constraint)
        while n_tokens < MAX_TOKENS and not constraint.is_over:
            began_s = time.thread_time()
            allowed = constraint.allowed()
            self.masks_us.append(1e6 * (time.thread_time() - began_s))
            token = int(chance.choice(np.flatnonzero(allowed)))
            if token in model.ends:
                break
            constraint.accept(TokenId(token))
            n_tokens += 1 + self._forced(constraint)
        constraint.close()

    def _forced(self, constraint: Constraint) -> int:
        began_s = time.thread_time()
        n_tokens = len(constraint.take_forced(MAX_TOKENS))
        self.forced_us.append(1e6 * (time.thread_time() - began_s))
        return n_tokens


def quantiles(values: list[float]) -> str:
    return f"median {np.median(values):6.0f} µs, p99 {np.quantile(values, 0.99):6.0f} µs, most {max(values):6.0f} µs"


def vocabulary_of(path: Path) -> Model:
    open_library()
    params = capi.llama_model_default_params()
    params.vocab_only = True
    return Model(
        capi.llama_model_load_from_file(str(path).encode(), params), (choose_device("cpu", devices()),), Watch()
    )


def resident_bytes() -> int:
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) * 1024


def submit(schema: Json | None = None, regex: str | None = None) -> Submit:
    text = None if schema is None else json.dumps(schema)
    return Submit(job=JobKey(0), prompt="", max_tokens=MAX_TOKENS, sampling=GREEDY, json_schema=text, regex=regex)


def constrained(found: object) -> Constraint:
    if not isinstance(found, Constraint):
        raise TypeError(found)
    return found


# ── steps and answers ────────────────────────────────────────────────────────────────────────────


class Bench:
    """An engine whose steps are timed."""

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        self.model = model
        self.engine = Engine(model.runner, config, emit=self._hear, clock=time.monotonic)
        self.n_tokens = 0
        self.n_decode_steps = 0
        self._n_jobs = 0

    def _hear(self, message: Outbound) -> None:
        if isinstance(message, StepDone):
            self.n_tokens += len(message.deltas)
            self.n_decode_steps += message.kind == "decode"
            for failed in message.failed:
                raise RuntimeError(failed.message)

    def ask(self, prompt: str, max_tokens: int, asked: Submit | None, sampling: Sampling = GREEDY) -> None:
        constraint = None if asked is None else self.model.constrain(asked)
        if isinstance(constraint, Violation):
            raise TypeError(constraint.message)
        self._n_jobs += 1
        tokens = self.model.tokenize(prompt)
        self.engine.submit(JobKey(self._n_jobs), tokens, max_tokens, sampling, constraint=constraint)


class Stream:
    """A text in a slot of its own, a token with each step."""

    def __init__(self, runner: LlamaRunner, slot: SlotId, prompt: list[TokenId], constraint: Constraint | None) -> None:
        [sampled] = runner.run(Step("prefill", (Slice(slot, 0, prompt, UNENDING, (), constraint),)))
        self.generated: list[TokenId] = []
        self._slot, self._n_prompt, self._constraint = slot, len(prompt), constraint
        self.take(sampled.token)

    def take(self, token: TokenId) -> None:
        self.generated.append(token)
        if self._constraint is not None:
            self._constraint.accept(token)
            self._constraint.take_forced(STEP_TOKENS)

    def piece(self) -> Slice:
        start = self._n_prompt + len(self.generated) - 1
        return Slice(self._slot, start, self.generated[-1:], UNENDING, self.generated, self._constraint)


def step_ms(runner: LlamaRunner, streams: list[Stream]) -> float:
    """Of the decode, the draws and all that follows them."""
    began_s = time.perf_counter()
    sampled = runner.run(Step("decode", tuple(stream.piece() for stream in streams)))
    for stream, each in zip(streams, sampled, strict=True):
        stream.take(each.token)
    return 1000 * (time.perf_counter() - began_s)


def measure_steps(model: LoadedModel, width: int) -> None:
    """Free and constrained texts side by side in one memory, a step of these and then one of those: another process's
    moment falls on both. The constraint allows what the model says, so that both draw the same tokens.
    """
    runner = cast(LlamaRunner, model.runner)
    free, bound, tokens = [], [], []
    for _ in range(N_ROUNDS):
        prompts = [model.tokenize(f"{number} is the number of a story. Once upon a time") for number in range(width)]
        regexes = [constrained(model.constrain(submit(regex=ANYTHING))) for _ in prompts]
        plain = [Stream(runner, SlotId(slot), prompt, None) for slot, prompt in enumerate(prompts)]
        held = [
            Stream(runner, SlotId(width + slot), prompt, regex)
            for slot, (prompt, regex) in enumerate(zip(prompts, regexes, strict=True))
        ]
        for _ in range(STEP_TOKENS):
            free.append(step_ms(runner, plain))
            bound.append(step_ms(runner, held))
        tokens.append([stream.generated for stream in plain] == [stream.generated for stream in held])
        runner.kv.clear()
    ratios = np.array(bound) / np.array(free)
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
    say(
        f"decode step, {width} streams: free {np.median(free):.2f} ms, constrained {np.median(bound):.2f} ms; "
        f"{len(ratios)} pairs' ratio {middle:.3f} (quartiles {low:.3f} and {high:.3f}); "
        f"{'the same tokens' if all(tokens) else 'OTHER TOKENS'}"
    )


def measure_answers(bench: Bench) -> None:
    """Each schema's answer alone, and free text of as many tokens, in turns; of each kind the fastest counts, whose
    prompt was found in the prefix cache.
    """
    steps_per_token, ratios = [], []
    for name, schema in SCHEMAS.items():
        fields = ", ".join(schema["properties"])
        request = f"Make up {name} and write it as JSON with the fields {fields}."
        prompt = f"<|im_start|>user\n{request}<|im_end|>\n<|im_start|>assistant\n"
        bound, free = [], []
        for _ in range(N_ROUNDS):
            bound.append(answer(bench, prompt, MAX_TOKENS, submit(schema)))
            free.append(answer(bench, prompt, bound[0].n_tokens, None))
        one, bound_s, free_s = bound[0], min(each.took_s for each in bound), min(each.took_s for each in free)
        steps_per_token.append(one.n_steps / one.n_tokens)
        ratios.append(free_s / bound_s)
        say(
            f"  {name:14} {one.n_tokens:3} tokens, {steps_per_token[-1]:.2f} decode steps per token, "
            f"{one.n_tokens / bound_s:5.1f} tokens/s against {one.n_tokens / free_s:5.1f}"
        )
    say(
        f"answers: {statistics.mean(steps_per_token):.2f} decode steps per token on average "
        f"({min(steps_per_token):.2f} to {max(steps_per_token):.2f}), "
        f"{statistics.median(ratios):.2f} times free text's tokens per second ({min(ratios):.2f} to {max(ratios):.2f})"
    )


@dataclass(frozen=True)
class Answer:
    n_tokens: int
    n_steps: int
    took_s: float


def answer(bench: Bench, prompt: str, max_tokens: int, asked: Submit | None) -> Answer:
    n_tokens, n_steps = bench.n_tokens, bench.n_decode_steps
    bench.ask(prompt, max_tokens, asked, replace(GREEDY, ignore_eos=asked is None))
    began_s = time.perf_counter()
    while not bench.engine.is_idle:
        bench.engine.step()
    return Answer(bench.n_tokens - n_tokens, bench.n_decode_steps - n_steps, time.perf_counter() - began_s)


# ── the schemas ──────────────────────────────────────────────────────────────────────────────────


def thing(**properties: Json) -> Json:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def some(items: Json, n_most: int = 3) -> Json:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": n_most}


def one_of(*values: str) -> Json:
    return {"enum": list(values)}


def between(low: int, high: int) -> Json:
    return {"type": "integer", "minimum": low, "maximum": high}


TEXT: Json = {"type": "string"}
WORD: Json = {"type": "string", "maxLength": 24}
NUMBER: Json = {"type": "number", "minimum": 0, "maximum": 100000}
FLAG: Json = {"type": "boolean"}
DATE: Json = {"type": "string", "format": "date"}
TIME: Json = {"type": "string", "format": "date-time"}

SCHEMAS: dict[str, Json] = {
    "a person": thing(
        first_name=WORD, last_name=WORD, age=between(0, 120), email={"type": "string", "format": "email"}
    ),
    "an address": thing(street=WORD, house_number=between(1, 999), postal_code=WORD, city=WORD, country=WORD),
    "an invoice": thing(
        invoice_number={"type": "string", "pattern": "^INV-[0-9]{6}$"},
        issued_on=DATE,
        customer=thing(name=WORD, vat_id=WORD),
        line_items=some(thing(description=WORD, quantity=between(1, 100), unit_price=NUMBER), 2),
        currency=one_of("EUR", "USD", "GBP"),
        is_paid=FLAG,
    ),
    "a weather call": thing(
        function={"const": "get_weather"},
        arguments=thing(location=WORD, unit=one_of("celsius", "fahrenheit"), days=between(1, 14)),
    ),
    "a search call": thing(
        function={"const": "search_documents"},
        arguments=thing(query=TEXT, max_results=between(1, 50), sort_by=one_of("relevance", "date")),
    ),
    "a sentiment": thing(sentiment=one_of("positive", "negative", "neutral"), confidence=NUMBER, explanation=TEXT),
    "a ticket": thing(
        title=WORD,
        description=TEXT,
        priority=one_of("low", "medium", "high", "critical"),
        labels=some(WORD),
        assigned_to={"type": ["string", "null"], "maxLength": 24},
    ),
    "a product": thing(sku=WORD, product_name=WORD, price=NUMBER, in_stock=FLAG, categories=some(WORD)),
    "an event": thing(title=WORD, starts_at=TIME, ends_at=TIME, location=WORD, attendees=some(WORD)),
    "a recipe": thing(
        recipe_name=WORD,
        servings=between(1, 12),
        ingredients=some(thing(ingredient=WORD, amount=NUMBER, unit=one_of("g", "ml", "piece"))),
        instructions=some(TEXT, 2),
    ),
    "a book": thing(title=WORD, author=WORD, published_year=between(1450, 2030), genres=some(WORD), isbn=WORD),
    "an order": thing(
        order_id={"type": "string", "format": "uuid"},
        status=one_of("pending", "shipped", "delivered", "cancelled"),
        total_amount=NUMBER,
        shipping_address=thing(street=WORD, city=WORD, postal_code=WORD),
    ),
    "a flight": thing(
        flight_number={"type": "string", "pattern": "^[A-Z]{2}[0-9]{3,4}$"},
        departure_airport={"type": "string", "pattern": "^[A-Z]{3}$"},
        arrival_airport={"type": "string", "pattern": "^[A-Z]{3}$"},
        departure_time=TIME,
        cabin_class=one_of("economy", "business", "first"),
    ),
    "a patient": thing(patient_name=WORD, date_of_birth=DATE, symptoms=some(WORD), is_urgent=FLAG),
    "a vehicle": thing(manufacturer=WORD, model=WORD, year=between(1900, 2030), fuel_type=one_of("petrol", "electric")),
    "a job offer": thing(job_title=WORD, company=WORD, salary_range=thing(minimum=NUMBER, maximum=NUMBER), remote=FLAG),
    "a review": thing(product_id=between(1, 99999), rating=between(1, 5), review_text=TEXT, would_recommend=FLAG),
    "a contact": thing(
        full_name=WORD,
        phone_numbers=some(thing(kind=one_of("mobile", "home", "work"), number=WORD), 2),
        preferred_language=one_of("en", "de", "fr"),
    ),
    "a config": thing(
        server=thing(hostname=WORD, port=between(1, 65535), use_tls=FLAG),
        log_level=one_of("debug", "info", "warning", "error"),
        timeout_seconds=between(1, 600),
    ),
    "an answer": thing(reasoning_steps=some(TEXT, 3), final_answer=WORD, confidence_percent=between(0, 100)),
}


if __name__ == "__main__":
    main(*sys.argv[1:])
