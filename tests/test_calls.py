"""Calls on the default model: required ones read as valid calls of offered tools, and cost no more than free text."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import jsonschema
import msgspec
import pytest

from tests.formats.writing import FORMATS
from tests.random_schemas import Schema, random_schema
from worker.constraints.jobs import Constraints
from worker.engine.channels import ControlTokens, marks_among
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.engine.sequence import Queued
from worker.formats.read.parse import Message, Reader, message_of
from worker.llama.context import Context
from worker.llama.devices import devices
from worker.llama.model import Model, constraints_of
from worker.llama.runner import LlamaRunner
from worker.models.plan.devices import choose_device
from worker.wire.chat_format import HERMES, CallFormat, ChatFormat
from worker.wire.jobs import Failed, Finished, JobKey, SamplingParams, StepDone, Submit
from worker.wire.messages import Outbound, Violation
from worker.wire.prompts import OfferedTool, Tools

pytestmark = pytest.mark.model

N_SLOTS = 8
N_CELLS = 4096
MAX_TOKENS = 160
MIN_FINISHED = 0.8
MAX_RATIO = 1.0
"""The most that a token of a required call may take, measured in tokens of free text."""

CODER = ChatFormat(
    name="coder",
    calls=CallFormat(
        form="tagged",
        call_begin="<tool_call>\n<function=",
        call_end="</function>\n</tool_call>",
        between="\n",
        name_end=">\n",
        parameter_begin="<parameter=",
        parameter_name_end=">\n",
        parameter_end="\n</parameter>\n",
    ),
)
PROMPT = "<|im_start|>user\nWhat is the weather in Zürich?<|im_end|>\n<|im_start|>assistant\n"


@dataclass(slots=True)
class Answers:
    """The engine's reports of its jobs."""

    texts: dict[JobKey, str] = field(default_factory=dict)
    ends: dict[JobKey, Finished | Failed] = field(default_factory=dict)
    n_tokens: int = 0

    def take(self, frame: Outbound) -> None:
        if isinstance(frame, StepDone):
            for delta in frame.deltas:
                self.texts[delta.job] = self.texts.get(delta.job, "") + delta.text
                self.n_tokens += 1
            self.ends |= {end.job: end for end in frame.finished}
            self.ends |= {end.job: end for end in frame.failed}


@pytest.fixture(scope="module")
def runner(model_path: Path) -> Iterator[LlamaRunner]:
    cpu = choose_device("cpu", devices())
    with Model.load(model_path, device=cpu, n_gpu_layers=0, on_progress=lambda _: None) as model:
        context = Context(
            model, n_ctx=N_CELLS, n_batch=512, n_ubatch=512, n_seq_max=N_SLOTS, n_threads=1, n_threads_batch=1
        )
        yield LlamaRunner(model, context)


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


def submit_of(seed: int, tools: Tools | None, max_tokens: int = MAX_TOKENS) -> Submit:
    sampling = SamplingParams(seed=seed, temperature=0.7, max_tokens=max_tokens)
    return Submit(job=JobKey(seed), prompt="", sampling=sampling, marks="split", tools=tools)


def answer_all(
    runner: LlamaRunner, constraints: Constraints, submits: list[Submit], marks: ControlTokens, text: str = PROMPT
) -> Answers:
    answers = Answers()
    engine = Engine(
        runner,
        EngineConfig(n_slots=N_SLOTS, n_cells=N_CELLS, context_length=N_CELLS, chunk=64),
        emit=answers.take,
        clock=time.monotonic,
        marks=marks,
    )
    prompt = runner.model.tokenize(text)
    for submit in submits:
        constraint = constraints.constrain(submit)
        assert not isinstance(constraint, Violation), constraint.message
        engine.submit(Queued(submit, list(prompt), constraint, []))
    while not engine.is_idle:
        engine.step()
    return answers


def read(form: ChatFormat, tools: tuple[OfferedTool, ...], text: str, *, is_cut: bool) -> Message:
    reader = Reader(form, {each.name: json.loads(each.parameters) for each in tools}, new_id=str)
    return message_of([*reader.push(text), *reader.finish(is_cut=is_cut)])


def check(runner: LlamaRunner, form: ChatFormat, seeds: range) -> None:
    marks = marks_among(runner.model.controls, runner.model.words)
    constraints = constraints_of(runner.model, marks, form)
    sets = {seed: tools_of(seed) for seed in seeds}
    asked = [submit_of(seed, Tools(tools=tools, is_required=True, is_parallel=False)) for seed, tools in sets.items()]
    answers = answer_all(runner, constraints, asked, marks)
    n_finished = 0
    for seed, tools in sets.items():
        end, text = answers.ends[JobKey(seed)], answers.texts[JobKey(seed)]
        assert isinstance(end, Finished), end
        message = read(form, tools, text, is_cut=end.reason == "MAX_TOKENS")
        assert not message.content, text
        if end.reason == "MAX_TOKENS":
            continue
        n_finished += 1
        (call,) = message.calls
        schemas = {each.name: json.loads(each.parameters) for each in tools}
        jsonschema.validate(json.loads(call.arguments), schemas[call.name], jsonschema.Draft202012Validator)
    assert n_finished >= MIN_FINISHED * len(sets), f"{n_finished} of {len(sets)} calls finished"


def test_required_calls_of_random_tools_read_as_valid_calls(runner: LlamaRunner) -> None:
    check(runner, HERMES, range(40))


def test_a_reasoning_that_the_prompt_has_opened_in_text_keeps_its_budget(runner: LlamaRunner) -> None:
    """The default model's vocabulary has no tokens for these markers, and it has not learned to write their end."""
    opened, form = "Question: 1+1?\n<think>\n", FORMATS["qwen3"]
    piece = runner.model.piece
    marks = replace(marks_among(runner.model.controls), text_markers=("<think>\n", "\n</think>\n\n"), piece=piece)
    constraints = constraints_of(runner.model, marks, form)
    tools = tools_of(0)
    asked = [
        msgspec.structs.replace(submit_of(seed, each, max_tokens), reasoning_budget=5)
        for seed, each, max_tokens in ((0, None, 30), (1, Tools(tools=tools, is_required=True, is_parallel=False), 200))
    ]
    answers = answer_all(runner, constraints, asked, marks, opened)
    free, call = (read(form, tools, answers.texts[submit.job], is_cut=False) for submit in asked)
    assert free.reasoning
    assert free.content
    assert call.reasoning
    assert call.calls
    assert not call.content
    for message in (free, call):
        assert len(runner.model.tokenize(message.reasoning)) <= 8, "5 tokens, spelled again"


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_required_calls_read_as_valid_calls(runner: LlamaRunner) -> None:
    check(runner, HERMES, range(1000, 2000))


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
    tools = Tools(tools=(tool,), is_required=True, is_parallel=False)

    def token_s(asked: Tools | None) -> float:
        submits = [submit_of(seed, asked, max_tokens=40) for seed in range(8)]
        seconds, n_tokens = 0.0, 0
        for submit in submits:
            began_s = time.process_time()
            n_tokens += answer_all(runner, constraints, [submit], marks).n_tokens
            seconds += time.process_time() - began_s
        return seconds / n_tokens

    token_s(tools), token_s(None)
    free_s, call_s = token_s(None), token_s(tools)
    assert call_s <= MAX_RATIO * free_s, f"call {1000 * call_s:.2f} ms/token, free text {1000 * free_s:.2f} ms/token"
