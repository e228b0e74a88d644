"""A grammar of calls allows the texts that the reader of its form reads, for every form and both kinds of markers."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.constraints.asked import constrained, submitted
from tests.constraints.made_vocabulary import MadeVocabulary, markers_of
from tests.formats.writing import CALLING
from tests.formats.writing import call as call_of
from tests.llama.test_vocabularies import load_vocabulary
from tests.random_schemas import NAMES, random_schema
from tests.tables import cases
from tests.vocabularies import VOCABULARIES
from worker.constraints.answer import AnswerConstraint
from worker.constraints.jobs import Constraints
from worker.engine.channels import CONTENT, Channel, ChannelState
from worker.engine.families import marks_among
from worker.formats.read.parse import Message, Reader, message_of
from worker.llama.model import Model, constraints_of
from worker.wire.chat_format import ChatFormat
from worker.wire.jobs import TokenId
from worker.wire.messages import Violation
from worker.wire.prompts import OfferedTool, Tools

LAW = settings(max_examples=12)
MAX_TOKENS = 2000
MEMBERS = ("city", "unit", "n", "a_b")
THOUGHT_ENDS = ("<|end|>", "<|eom|>")
N_LLAMA_2 = 32_000
"""The tokens of the SentencePiece vocabulary among the real ones."""

Schema = dict[str, Any]

leaves: st.SearchStrategy[Schema] = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "description": "Any text."},
        {"type": "string", "enum": ["celsius", "Fahrenheit 451", "12"]},
        {"type": "string", "minLength": 2, "maxLength": 5},
        {"type": "string", "pattern": "^[a-z]{2,4}$"},
        {"type": "integer", "minimum": 0, "maximum": 99},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
        {"type": ["integer", "null"]},
        {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "boolean"}}, "required": ["y"]},
        {"$ref": "#/$defs/level"},
        {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
    ]
)
DEFINITIONS = {
    "level": {"enum": ["low", "high"]},
    "point": {"type": "object", "properties": {"x": {"type": "string", "maxLength": 3}}, "required": ["x"]},
}


@st.composite
def offers(draw: st.DrawFn) -> list[OfferedTool]:
    names = draw(
        st.lists(st.sampled_from(["get_weather", "get", "send-mail", "f2"]), min_size=1, max_size=3, unique=True)
    )
    made = []
    for place, name in enumerate(names):
        properties = draw(st.dictionaries(st.sampled_from(MEMBERS), leaves, max_size=3))
        required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
        schema: Schema = {"type": "object", "properties": properties, "required": required}
        if any("$ref" in json.dumps(each) for each in properties.values()):
            schema["$defs"] = DEFINITIONS
        made.append(OfferedTool(name=name, place=place, parameters=json.dumps(schema)))
    return made


class RealVocabulary:
    """A model's vocabulary in the form that the walks ask for."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.pieces, self.ends, self.controls = model.pieces, model.ends, model.controls

    def tokens(self, text: str) -> list[int]:
        return [int(token) for token in self._model.spell(text.encode())]

    def shown(self, tokens: Iterable[int]) -> bytes:
        return b"".join(self._model.piece(TokenId(token)) for token in tokens)


def constraint_of(
    made: MadeVocabulary,
    form: ChatFormat,
    tools: list[OfferedTool],
    *,
    is_required: bool = True,
    is_parallel: bool = True,
) -> AnswerConstraint:
    constraints = Constraints(
        made.vocabulary(), give_back=lambda: None, marks=marks_among(made.controls, made.words), form=form
    )
    asked = Tools(tools=tuple(tools), is_required=is_required, is_parallel=is_parallel)
    return constrained(constraints, tools=asked)


def walk(
    constraint: AnswerConstraint,
    made: MadeVocabulary | RealVocabulary,
    form: ChatFormat,
    rng: np.random.Generator,
    names: Iterable[str] = MEMBERS,
) -> list[int] | None:
    """Go on by random tokens until the text is over or may end; what has become long is led to its end. Return None if
    it does not end within MAX_TOKENS."""
    said: list[int] = []
    assert form.calls is not None
    end, section_end = form.calls.parameter_end, form.calls.section_end
    quote = '<|"|>' if form.calls.form == "gemma" else '"'
    words = [end, end.strip(), quote, "}", "]", section_end.strip(), section_end, ","]
    words += [name for name in THOUGHT_ENDS if name in made.controls]
    if form.calls.form == "nested":
        words += [f"{end}{name}>" for name in (*names, "x", "y", "item")]
    known = dict.fromkeys(words)
    # A vocabulary may have no spelling of some of them.
    closers = [tokens for each in known if (tokens := made.tokens(each))]
    while len(said) < MAX_TOKENS and not constraint.is_over:
        if run := constraint.take_forced(50):
            said += [each.id for each in run]
            continue
        mask = constraint.allowed()
        allowed = np.flatnonzero(mask) if mask is not None else np.arange(len(made.pieces) - 1)
        assert allowed.size, made.shown(said)
        may_end = mask is not None and bool(mask[made.ends].any())
        if may_end and (rng.random() < 0.5 or len(said) > 100):
            return said
        tokens = [int(rng.choice(allowed))]
        if len(said) > 30 or rng.random() < 0.3:
            fitting = [each for each in closers if constraint.n_allowed([TokenId(t) for t in each]) == len(each)]
            tokens = fitting[rng.integers(len(fitting))] if fitting else tokens
        if tokens[0] in made.ends:
            return said
        for token in tokens:
            constraint.accept(TokenId(token))
            said.append(token)
    return said if constraint.is_over else None


def place_of(form: ChatFormat) -> ChannelState:
    """The place behind the prompt."""
    return ChannelState(Channel.ROLE) if form.opening == "<|start|>assistant" else CONTENT


def read(form: ChatFormat, tools: list[OfferedTool], text: str, cuts: list[int], *, is_cut: bool = False) -> Message:
    reader = Reader(
        form,
        {each.name: json.loads(each.parameters) for each in tools},
        new_id=lambda index: f"id{index}",
        reads_fenced=False,
    )
    edges = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    deltas = [delta for a, b in pairwise(edges) for delta in reader.push(text[a:b])]
    return message_of([*deltas, *reader.finish(is_cut=is_cut)])


def check(message: Message, tools: list[OfferedTool], text: str) -> None:
    schemas = {each.name: json.loads(each.parameters) for each in tools}
    for call in message.calls:
        assert call.name in schemas, text
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])


@pytest.mark.parametrize("has_controls", [False, True], ids=["spelled", "control tokens"])
@pytest.mark.parametrize("name", CALLING)
@LAW
@given(
    tools=offers(),
    walked=st.tuples(st.integers(0, 2**32), st.booleans()),
    cuts=st.lists(st.integers(0, 999), max_size=5),
)
def test_an_answer_of_required_calls_reads_as_calls_with_valid_arguments(
    name: str, has_controls: bool, tools: list[OfferedTool], walked: tuple[int, bool], cuts: list[int]
) -> None:
    seed, is_parallel = walked
    form = CALLING[name]
    made = MadeVocabulary(markers_of(form) if has_controls else ())
    constraint = constraint_of(made, form, tools, is_parallel=is_parallel)
    constraint.begin(place_of(form))
    said = walk(constraint, made, form, np.random.default_rng(seed))
    assert said is not None
    text = made.shown(said).decode(errors="replace")
    message = read(form, tools, text, cuts)
    assert message.calls, text
    assert not message.content.strip(), text
    assert is_parallel or len(message.calls) == 1
    check(message, tools, text)
    cut = read(form, tools, text[: cuts[0] % (len(text) + 1)] if cuts else "", cuts, is_cut=True)
    assert len(cut.calls) <= len(message.calls)
    for whole, part in zip(message.calls, cut.calls, strict=False):
        assert whole.name == part.name
        assert whole.arguments.startswith(part.arguments)


@pytest.mark.parametrize("seed", [seed for seed in range(60) if random_schema(seed).get("type") == "object"][:20])
def test_arguments_whose_names_are_tags_read_as_what_their_schema_says(seed: int) -> None:
    """Their objects and lists are JSON."""
    form, tool = CALLING["minimax-m3"], OfferedTool(name="get", place=0, parameters=json.dumps(random_schema(seed)))
    made = MadeVocabulary(markers_of(form))
    constraint = constraint_of(made, form, [tool])
    constraint.begin(CONTENT)
    said = walk(constraint, made, form, np.random.default_rng(seed), NAMES)
    assert said is not None
    text = made.shown(said).decode(errors="replace")
    message = read(form, [tool], text, [])
    assert message.calls
    assert not message.content.strip()
    check(message, [tool], text)


@dataclass(frozen=True)
class Real:
    """A real vocabulary, and the constraints of a form over it."""

    vocabulary: RealVocabulary
    constraints: Constraints
    form: ChatFormat


# SentencePiece writes a space as U+2581, which stands in DeepSeek's markers: it cannot spell them.
REAL_FORMS = ("hermes", "qwen3-coder", "deepseek-v3", "glm-4.5", "gemma-4", "lfm2", "llama-3")


@pytest.fixture(scope="module", params=["qwen2", "llama-spm", "llama-bpe"])
def real_model(request: pytest.FixtureRequest) -> Iterator[Model]:
    [vocabulary] = [each for each in VOCABULARIES if each.name == request.param]
    with load_vocabulary(vocabulary) as model:
        yield model


@pytest.fixture(scope="module", params=REAL_FORMS)
def real(request: pytest.FixtureRequest, real_model: Model) -> Real:
    form = CALLING[request.param]
    if real_model.n_vocab == N_LLAMA_2 and request.param == "deepseek-v3":
        pytest.skip("the vocabulary cannot spell the form's markers")
    constraints = constraints_of(real_model, marks_among(real_model.controls, real_model.words), form)
    return Real(RealVocabulary(real_model), constraints, form)


@pytest.mark.model
@settings(max_examples=4)
@given(tools=offers(), seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 999), max_size=5))
def test_over_a_real_vocabulary_an_answer_of_required_calls_reads_as_calls(
    real: Real, tools: list[OfferedTool], seed: int, cuts: list[int]
) -> None:
    constraint = constrained(real.constraints, tools=Tools(tools=tuple(tools), is_required=True))
    constraint.begin(CONTENT)
    said = walk(constraint, real.vocabulary, real.form, np.random.default_rng(seed))
    assume(said is not None)
    assert said is not None
    text = real.vocabulary.shown(said).decode()
    message = read(real.form, tools, text, cuts)
    assert message.calls, text
    assert not message.content.strip(), text
    check(message, tools, text)


PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk // of a file
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

%import common.LF
"""
PATCHES = (
    "*** Begin Patch\n*** Delete File: a.py\n*** End Patch",
    '*** Begin Patch\n*** Add File: a"b\\c.py\n+\tx = "\\n"\n+\n*** End Patch\n',
)
NO_PATCHES = (
    "*** Begin Patch\n*** End Patch",
    "*** Begin Patch\n*** Delete File: \n*** End Patch",
    '*** Begin Patch\n*** Add File: a\n-x = "1"\n*** End Patch\n',
)
TEXT_TOOL = OfferedTool(name="apply_patch", place=0, is_text=True, grammar=PATCH)


def written_call(form: ChatFormat, name: str, arguments: dict[str, Any]) -> str:
    """The call as the model writes it."""
    assert form.calls is not None
    if form.calls.form == "harmony" and not form.calls.parameter_begin:
        return f"{form.calls.call_begin}{name}{form.calls.name_end}{json.dumps(arguments, ensure_ascii=False)}"
    call = form.calls.section_begin + call_of(form.calls, name, arguments, 0) + form.calls.section_end
    return f" to={name}<|message|>{call}" if form.calls.form == "harmony" else call.removeprefix(form.opening)


def is_call(form: ChatFormat, tool: OfferedTool, text: str) -> bool:
    """Return True if a call with this text is allowed."""
    made = MadeVocabulary(markers_of(form))
    constraint = constraint_of(made, form, [tool], is_parallel=False)
    constraint.begin(place_of(form))
    assert form.calls is not None
    call = written_call(form, tool.name, {"input": text})
    for token in made.tokens(call.removesuffix("<|call|>")):
        if not constraint.n_allowed([TokenId(token)]):
            return False
        constraint.accept(TokenId(token))
    return constraint.is_over


@pytest.mark.parametrize(
    "name", ["hermes", "harmony", "qwen3-coder", "deepseek-v3", "deepseek-v3.2", "gemma-4", "llama-3"]
)
def test_a_text_follows_its_grammar_in_every_form(name: str) -> None:
    form = CALLING[name]
    assert [is_call(form, TEXT_TOOL, text) for text in PATCHES] == [True] * len(PATCHES)
    assert [is_call(form, TEXT_TOOL, text) for text in NO_PATCHES] == [False] * len(NO_PATCHES)


@pytest.mark.parametrize("name", ["hermes", "qwen3-coder"])
def test_a_text_may_be_anything_or_follow_a_regular_expression(name: str) -> None:
    form = CALLING[name]
    free = OfferedTool(name="say", place=0, is_text=True)
    assert all(is_call(form, free, text) for text in (*PATCHES, *NO_PATCHES, "é"))
    dated = OfferedTool(name="say", place=0, is_text=True, regex="[0-9]{2}:[0-9]{2}")
    assert is_call(form, dated, "12:30")
    assert not is_call(form, dated, "12:3")


REGEXES = ("a+b?", "[^x]{1,3}", "(ab|c.)*", r"[\"\\\\]+", r"\d\.\w?", "x|[a-c\\n]", r"\x41\u0042", "[ab]*?c")


@settings(max_examples=200)
@given(regex=st.sampled_from(REGEXES), text=st.text('abcxAB1.,"\\\n\té', max_size=4))
def test_a_json_string_carries_exactly_the_texts_of_a_regular_expression(regex: str, text: str) -> None:
    tool = OfferedTool(name="say", place=0, is_text=True, grammar=f"start: /{regex}/")
    assert is_call(CALLING["hermes"], tool, text) == (re.fullmatch(regex, text) is not None)


@cases
@pytest.mark.parametrize("is_required", [True, False])
def test_what_cannot_be_enforced_is_refused_by_the_tools_place(
    tool: dict[str, Any], why: str, is_required: bool
) -> None:
    """A free answer is refused only for a schema that the client insists on."""
    constraints = Constraints(MadeVocabulary().vocabulary(), give_back=lambda: None)
    tools = (OfferedTool(name="good", place=0), OfferedTool(name="bad", place=3, is_strict=not is_required, **tool))
    found = constraints.constrain(submitted(tools=Tools(tools=tools, is_required=is_required)))
    assert isinstance(found, Violation)
    assert (found.field, found.constraint) == ("tools", "supported")
    assert found.message.startswith(f"tools[3]: {why}"), found.message


@pytest.mark.parametrize("form", ["qwen3-coder", "gemma-4", "minimax-m3"])
@pytest.mark.parametrize(("schema", "is_refused"), [({"type": "integer"}, False), ({"$ref": "#/$defs/x"}, True)])
def test_definitions_are_copied_into_the_parts_that_refer_to_them_and_not_without_end(
    form: str, schema: dict[str, str], is_refused: bool
) -> None:
    """A request of 100 KB would become a grammar of 10 MB."""
    definitions = {"x": {"type": "integer", "description": "x" * 100_000}}
    properties = {f"p{i}": schema for i in range(100)}
    parameters = {"type": "object", "properties": properties, "additionalProperties": False, "$defs": definitions}
    tool = OfferedTool(name="large", place=0, parameters=json.dumps(parameters))
    made = MadeVocabulary(markers_of(CALLING[form]))
    constraints = Constraints(
        made.vocabulary(), give_back=lambda: None, marks=marks_among(made.controls, made.words), form=CALLING[form]
    )
    found = constraints.constrain(submitted(tools=Tools(tools=(tool,), is_required=True)))
    assert isinstance(found, Violation) == is_refused
    if isinstance(found, Violation):
        assert found.message.startswith("tools[0]: its schema is too large to be enforced"), found.message


NUMBER = OfferedTool(name="good", place=0, parameters='{"properties": {"n": {"type": "integer"}}, "required": ["n"]}')
ODD = OfferedTool(
    name="odd",
    place=3,
    parameters=json.dumps(
        {
            "type": "object",
            "properties": {
                "city": {"type": "string", "format": "unknown"},
                "n": {"type": ["integer", "null"], "not": {"const": 1}},
                "any": {},
            },
            "required": ["city", "n"],
        }
    ),
)


def is_free_call(constraint: AnswerConstraint, made: MadeVocabulary, form: ChatFormat, call: str) -> bool:
    """Return True if a free answer may have this call."""
    constraint.begin(place_of(form))
    for token in made.tokens(call):
        if not constraint.n_allowed([TokenId(token)]):
            return False
        constraint.accept(TokenId(token))
    return True


@pytest.mark.parametrize("name", [name for name in CALLING if name != "gemma-4"])
def test_in_a_free_answer_only_the_tool_whose_schema_cannot_be_enforced_is_free(name: str) -> None:
    form = CALLING[name]
    made = MadeVocabulary(markers_of(form))
    for tool, arguments, expected in (
        (ODD, {"city": "Oslo", "n": 1}, True),
        (ODD, {"any": 5}, True),
        (NUMBER, {"n": 7}, True),
        (NUMBER, {"n": "x"}, False),
    ):
        constraint = constraint_of(made, form, [NUMBER, ODD], is_required=False)
        assert constraint.unenforced_tools == (ODD.place,)
        # A text in Python's notation is held to JSON's quotes.
        call = written_call(form, tool.name, arguments).replace("'", '"')
        assert is_free_call(constraint, made, form, call) is expected, (call, expected)


def test_where_no_object_can_be_written_freely_no_call_is_constrained_and_all_tools_are_named() -> None:
    form = CALLING["gemma-4"]
    made = MadeVocabulary(markers_of(form))
    constraint = constraint_of(made, form, [NUMBER, ODD], is_required=False)
    assert constraint.unenforced_tools == (NUMBER.place, ODD.place)
    assert is_free_call(constraint, made, form, written_call(form, "good", {"n": "x"}))


def test_what_can_be_enforced_is_enforced_with_auto() -> None:
    made = MadeVocabulary(markers_of(CALLING["hermes"]))
    assert constraint_of(made, CALLING["hermes"], [NUMBER], is_required=False).unenforced_tools == ()


def test_where_calls_have_no_form_they_cannot_be_required_and_are_free() -> None:
    constraints = Constraints(MadeVocabulary().vocabulary(), give_back=lambda: None, form=ChatFormat())
    for is_required in (True, False):
        tools = Tools(tools=(OfferedTool(name="get", place=0),), is_required=is_required)
        found = constraints.constrain(submitted(tools=tools))
        assert isinstance(found, Violation) is is_required


@pytest.mark.parametrize("name", [name for name, form in CALLING.items() if form.calls and form.calls.reserved])
def test_a_tool_cannot_have_the_name_of_another_receiver(name: str) -> None:
    form = CALLING[name]
    assert form.calls is not None
    constraints = Constraints(MadeVocabulary().vocabulary(), give_back=lambda: None, form=form)
    for reserved in form.calls.reserved:
        tools = (OfferedTool(name="get", place=0), OfferedTool(name=reserved, place=1))
        found = constraints.constrain(submitted(tools=Tools(tools=tools, is_required=True)))
        assert isinstance(found, Violation)
        assert found.message == "tools[1]: a tool cannot have this name in this model's form of calls"
        assert not read(form, list(tools), written_call(form, reserved, {"a": 1}), []).calls
        assert constraint_of(MadeVocabulary(), form, list(tools), is_required=False).unenforced_tools == (1,)
