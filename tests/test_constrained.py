"""Constrained output on the default model: answers satisfy their schemas, required calls read as valid calls of offered
tools, and a constraint costs little.

The constraints and the engine are the real ones, in this process.
"""

import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jsonschema
import msgspec
import pytest

from tests.formats.writing import FORMATS
from tests.random_schemas import Schema, random_schema
from tests.real_engine import Told, answered, plain_runner
from worker.constraints.answer import AnswerConstraint
from worker.constraints.jobs import Constraints
from worker.engine.channels import NO_CONTROL_TOKENS, ControlTokens
from worker.engine.config import EngineConfig
from worker.engine.families import marks_among
from worker.engine.sequence import Queued
from worker.engine.step import Slice, Step
from worker.formats.read.parse import Message, Reader, message_of
from worker.llama.model import constraints_of
from worker.llama.runner import LlamaRunner
from worker.wire.chat_format import HERMES, ChatFormat
from worker.wire.jobs import Finished, JobKey, SamplingParams, SchemaText, SlotId, Submit
from worker.wire.messages import Violation
from worker.wire.prompts import OfferedTool, Tools

pytestmark = pytest.mark.model

CONFIG = EngineConfig(n_slots=8, n_cells=4096, context_length=4096, chunk=64)
MAX_TOKENS, MIN_FINISHED = 96, 0.95
MAX_CALL_TOKENS, MIN_CALLS_FINISHED = 160, 0.8
MAX_STEP_RATIO = 1.2
A_THOUSAND = pytest.param(range(1000, 2000), marks=[pytest.mark.soak, pytest.mark.timeout(3600)])
MAX_TOKEN_RATIO = 1.0
"""The most that a token of a required call may take, measured in tokens of free text."""

PROMPT = "<|im_start|>user\nAnswer with a short JSON value.<|im_end|>\n<|im_start|>assistant\n"
WEATHER = "<|im_start|>user\nWhat is the weather in Zürich?<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def runner(model_path: Path) -> Iterator[LlamaRunner]:
    with plain_runner(model_path, n_cells=CONFIG.n_cells, n_slots=CONFIG.n_slots) as runner:
        yield runner


@pytest.fixture(scope="module")
def constraints(runner: LlamaRunner) -> Constraints:
    return constraints_of(runner.model)


def answers(
    runner: LlamaRunner,
    constraints: Constraints,
    submits: Sequence[Submit],
    prompt: str = PROMPT,
    marks: ControlTokens = NO_CONTROL_TOKENS,
) -> Told:
    """The answers of all jobs, eight at a time."""

    def jobs() -> Iterator[Queued]:
        for submit in submits:
            constraint = constraints.constrain(submit)
            assert not isinstance(constraint, Violation), constraint.message
            yield Queued(submit, runner.model.tokenize(prompt), constraint)

    return answered(runner, CONFIG, jobs(), marks=marks)


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seeds", [range(100), A_THOUSAND])
def test_schemas_of_all_kinds_are_satisfied(runner: LlamaRunner, constraints: Constraints, seeds: range) -> None:
    schemas = {seed: random_schema(seed) for seed in seeds}
    told = answers(runner, constraints, [schema_submit(seed, schema) for seed, schema in schemas.items()])
    n_finished = 0
    for seed, schema in schemas.items():
        end, text = told.ends[JobKey(seed)], told.texts[JobKey(seed)]
        assert isinstance(end, Finished), end
        if end.reason == "EOS":
            n_finished += 1
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    assert n_finished >= MIN_FINISHED * len(schemas), f"{n_finished} of {len(schemas)} answers finished"


def schema_submit(seed: int, schema: Schema) -> Submit:
    text = SchemaText(json.dumps(schema))
    sampling = SamplingParams(seed=seed, temperature=0.7, max_tokens=MAX_TOKENS, json_schema=text)
    return Submit(job=JobKey(seed), prompt="", sampling=sampling)


@pytest.mark.soak
def test_a_constraint_that_the_model_follows_costs_a_small_part_of_a_step(
    runner: LlamaRunner, constraints: Constraints
) -> None:
    """Medians of steps at the same positions, in turns, so that another process's moment falls on both."""
    plain, constrained = [], []
    for _ in range(8):
        plain += step_s(runner, 40, None)
        submit = Submit(
            job=JobKey(0), prompt="", sampling=SamplingParams(seed=0, max_tokens=MAX_TOKENS, regex="(?s:.*)")
        )
        constraint = constraints.constrain(submit)
        assert isinstance(constraint, AnswerConstraint)
        constrained += step_s(runner, 40, constraint)
        constraint.close()
    with_s, without_s = statistics.median(constrained), statistics.median(plain)
    assert with_s <= MAX_STEP_RATIO * without_s, f"{1000 * with_s:.2f} ms against {1000 * without_s:.2f} ms"


def step_s(runner: LlamaRunner, n_steps: int, constraint: AnswerConstraint | None) -> list[float]:
    """Seconds of each whole decode step of one greedy answer: decode, draw, go on in the constraint."""
    sampling = SamplingParams(seed=0, temperature=0.0)
    prompt = runner.model.tokenize("Once upon a time")
    slot, took_s = SlotId(0), []
    generated = [runner.run(Step("prefill", (Slice(slot, 0, prompt, sampling, (), constraint),)))[0].token]
    for _ in range(n_steps):
        began_s = time.perf_counter()
        if constraint is not None:
            constraint.accept(generated[-1])
        start = len(prompt) + len(generated) - 1
        piece = Slice(slot, start, generated[-1:], sampling, generated, constraint)
        [sampled] = runner.run(Step("decode", (piece,)))
        took_s.append(time.perf_counter() - began_s)
        assert not sampled.is_end
        generated.append(sampled.token)
    runner.kv.trim(slot, 0)
    return took_s


# ── calls ────────────────────────────────────────────────────────────────────────────────────────


def tools_of(seed: int) -> tuple[OfferedTool, ...]:
    """One to three tools with schemas of ordinary shape."""
    schemas = [random_schema(each) for each in range(3 * seed, 3 * seed + 1 + seed % 3)]
    objects = [
        each if each.get("type") == "object" else {"type": "object", "properties": {"it": each}} for each in schemas
    ]
    return tuple(
        OfferedTool(name=f"tool_{place}", place=place, parameters=json.dumps(_with_definitions(schema)))
        for place, schema in enumerate(objects)
    )


def _with_definitions(schema: Schema) -> Schema:
    """References lead to the document's own definitions."""
    inner = schema.get("properties", {}).get("it", {})
    moved = {key: inner[key] for key in ("$defs", "definitions") if isinstance(inner, dict) and key in inner}
    return {**schema, **moved}


def call_submit(seed: int, tools: Sequence[OfferedTool] | None, max_tokens: int = MAX_CALL_TOKENS) -> Submit:
    """Free text without tools, else one required call."""
    required = None if tools is None else Tools(tools=tuple(tools), is_required=True, is_parallel=False)
    sampling = SamplingParams(seed=seed, temperature=0.7, max_tokens=max_tokens)
    return Submit(job=JobKey(seed), prompt="", sampling=sampling, marks="split", tools=required)


def schemas_of(tools: Sequence[OfferedTool]) -> Mapping[str, Schema]:
    return {each.name: json.loads(each.parameters) for each in tools}


def read(form: ChatFormat, tools: Sequence[OfferedTool], text: str, *, is_cut: bool) -> Message:
    reader = Reader(form, schemas_of(tools), new_id=str)
    return message_of([*reader.push(text), *reader.finish(is_cut=is_cut)])


@pytest.mark.parametrize("seeds", [range(40), A_THOUSAND])
def test_required_calls_of_random_tools_read_as_valid_calls(runner: LlamaRunner, seeds: range) -> None:
    marks = marks_among(runner.model.controls, runner.model.words)
    sets = {seed: tools_of(seed) for seed in seeds}
    asked = [call_submit(seed, tools) for seed, tools in sets.items()]
    told = answers(runner, constraints_of(runner.model, marks, HERMES), asked, WEATHER, marks)
    n_finished = 0
    for seed, tools in sets.items():
        end, text = told.ends[JobKey(seed)], told.texts[JobKey(seed)]
        assert isinstance(end, Finished), end
        message = read(HERMES, tools, text, is_cut=end.reason == "MAX_TOKENS")
        assert not message.content, text
        if end.reason != "MAX_TOKENS":
            n_finished += 1
            (call,) = message.calls
            schema = schemas_of(tools)[call.name]
            jsonschema.validate(json.loads(call.arguments), schema, jsonschema.Draft202012Validator)
    assert n_finished >= MIN_CALLS_FINISHED * len(sets), f"{n_finished} of {len(sets)} calls finished"


def test_a_reasoning_that_the_prompt_has_opened_in_text_keeps_its_budget(runner: LlamaRunner) -> None:
    """The default model's vocabulary has no tokens for these markers, and it has not learned to write their end."""
    form, piece, tools = FORMATS["qwen3"], runner.model.piece, tools_of(0)
    marks = replace(marks_among(runner.model.controls), text_markers=("<think>\n", "\n</think>\n\n"), piece=piece)
    asked = [
        msgspec.structs.replace(submit, reasoning_budget=5)
        for submit in (call_submit(0, None, 30), call_submit(1, tools, 200))
    ]
    told = answers(runner, constraints_of(runner.model, marks, form), asked, "Question: 1+1?\n<think>\n", marks)
    free, call = (read(form, tools, told.texts[submit.job], is_cut=False) for submit in asked)
    assert free.reasoning
    assert free.content
    assert call.reasoning
    assert call.calls
    assert not call.content
    for message in (free, call):
        assert len(runner.model.tokenize(message.reasoning)) <= 8, "5 tokens, spelled again"


def test_a_token_of_a_required_call_takes_no_longer_than_one_of_free_text(runner: LlamaRunner) -> None:
    """Tokens that are forced are not drawn, and several of them are computed in one step."""
    marks = marks_among(runner.model.controls, runner.model.words)
    constraints = constraints_of(runner.model, marks)
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
    }
    tool = OfferedTool(name="get_current_weather", place=0, parameters=json.dumps(schema))

    def token_s(tools: Sequence[OfferedTool] | None) -> float:
        seconds, n_tokens = 0.0, 0
        for seed in range(8):
            began_s = time.process_time()
            told = answers(runner, constraints, [call_submit(seed, tools, 40)], WEATHER, marks)
            n_tokens += sum(told.n_tokens.values())
            seconds += time.process_time() - began_s
        return seconds / n_tokens

    token_s([tool]), token_s(None)
    free_s, call_s = token_s(None), token_s([tool])
    assert call_s <= MAX_TOKEN_RATIO * free_s, (
        f"call {1000 * call_s:.2f} ms/token, free text {1000 * free_s:.2f} ms/token"
    )
