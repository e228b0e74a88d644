"""A constraint allows, forces and takes back tokens: byte by byte on the tiny model, and over real vocabularies."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import jsonschema
import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.apis.asking import TERMS
from tests.constraints.bytewise import byte, constrain, is_text, mask_of, submit
from tests.constraints.made_vocabulary import MadeVocabulary
from tests.llama.test_vocabularies import load_vocabulary
from tests.llama.tiny import END, write_tiny
from tests.on_cpu import loaded_on_cpu
from tests.tables import cases
from tests.vocabularies import VOCABULARIES
from worker.apis.completions.request import read_completion
from worker.constraints.answer import AnswerConstraint
from worker.constraints.constraint import MAX_FORCED_BYTES
from worker.constraints.jobs import Constraints
from worker.engine.step import Token
from worker.llama.model import Model, constraints_of
from worker.wire.jobs import TokenId
from worker.wire.messages import Violation

LAW = settings(max_examples=60)

REGEXES = ("", "ab?", "a+", "(ab|abc)d*", "[0-9]{2}:[0-9]{2}", "x(yz)*", "(?i:yes|no)", "é?[a-z]{0,3}")
SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["alpha", "beta", 7]},
        "first_name": {"type": "string", "maxLength": 4},
        "ages": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 120}, "maxItems": 2},
    },
    "required": ["kind", "first_name"],
    "additionalProperties": False,
}
SPECIAL_NAMES = "<|im_end|><s></s><|endoftext|><|end|><unk><0x41>"
TEXTS = (
    SPECIAL_NAMES,
    "name",
    " a space first",
    "  two",
    " ",
    "héllo wörld 世界 🎉",
    "e\u0301\u200b",
    "a" * 200,
    "x\0y",
)

choices = st.lists(st.integers(0, 2**31), max_size=40)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """The tiny model with a vocabulary that has no end."""
    path = write_tiny(tmp_path_factory.mktemp("endless") / "endless.gguf", has_end=False)
    with loaded_on_cpu(path) as model:
        assert model.ends.size == 0
        yield model


def allowed_by(constraint: AnswerConstraint) -> list[int]:
    return [int(token) for token in np.flatnonzero(mask_of(constraint))]


def walk(constraint: AnswerConstraint, numbers: list[int], model: Model) -> Iterator[bytes]:
    """Go on by tokens that the numbers choose, until only an end may follow; the text at every point."""
    text = b""
    yield text
    for number in numbers:
        tokens = [token for token in allowed_by(constraint) if token not in model.ends]
        if constraint.is_over or not tokens:
            return
        constraint.accept(TokenId(tokens[number % len(tokens)]))
        text += model.piece(TokenId(tokens[number % len(tokens)]))
        yield text


def texts_of(run: list[Token]) -> bytes:
    return b"".join(each.piece for each in run)


@LAW
@given(regex=st.sampled_from(REGEXES), numbers=choices)
def test_an_end_is_allowed_exactly_where_the_text_matches(
    bytewise: Model, constraints: Constraints, regex: str, numbers: list[int]
) -> None:
    constraint = constrain(constraints, regex=regex)
    for text in walk(constraint, numbers, bytewise):
        # A character that is not complete becomes one that no regex here takes.
        is_match = re.fullmatch(regex, text.decode(errors="replace")) is not None
        assert mask_of(constraint)[END] == is_match


@LAW
@given(numbers=choices)
def test_an_answer_under_a_schema_ends_exactly_where_it_is_a_valid_instance(
    bytewise: Model, constraints: Constraints, numbers: list[int]
) -> None:
    constraint = constrain(constraints, json_schema=json.dumps(SCHEMA))
    for text in walk(constraint, numbers, bytewise):
        assert mask_of(constraint)[END] == is_valid(text)


def is_valid(text: bytes) -> bool:
    try:
        jsonschema.validate(json.loads(text), SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


@LAW
@given(regex=st.sampled_from(REGEXES), numbers=choices)
def test_it_is_over_where_only_an_end_may_follow_what_was_said(
    bytewise: Model, constraints: Constraints, regex: str, numbers: list[int]
) -> None:
    constraint = constrain(constraints, regex=regex)
    for text in walk(constraint, numbers, bytewise):
        if text:
            assert constraint.is_over == (allowed_by(constraint) == [END])


def test_an_empty_text_leaves_only_the_end_to_be_drawn(constraints: Constraints) -> None:
    constraint = constrain(constraints, regex="")
    assert allowed_by(constraint) == [END]
    assert constraint.take_forced(9) == []


@LAW
@given(
    texts=st.lists(st.text(st.characters(exclude_characters="\0"), min_size=1, max_size=6), min_size=1, max_size=6),
    other=st.text(max_size=6),
)
def test_a_choice_of_texts_is_one_of_them_and_nothing_else(
    constraints: Constraints, texts: list[str], other: str
) -> None:
    """A `guided_choice` of `/v1`."""
    asked = msgspec.json.encode({"prompt": "a", "guided_choice": texts})
    regex = read_completion(asked, TERMS).params.regex
    assert all(is_text(constrain(constraints, regex=regex), text) for text in texts)
    assert is_text(constrain(constraints, regex=regex), other) == (other in texts)


@LAW
@given(regex=st.sampled_from(REGEXES), numbers=choices)
def test_where_there_is_a_choice_the_count_of_allowed_tokens_agrees_with_the_mask(
    bytewise: Model, constraints: Constraints, regex: str, numbers: list[int]
) -> None:
    """The mask has a forced token alone; the count takes every spelling of its text."""
    constraint = constrain(constraints, regex=regex)
    for _ in walk(constraint, numbers, bytewise):
        if constraint.is_over:
            return
        counted = [token for token in range(bytewise.n_vocab) if constraint.n_allowed([TokenId(token)])]
        if forced := constraint.forced():
            assert allowed_by(constraint) == forced[:1]
            assert forced[0] in counted
        else:
            assert allowed_by(constraint) == counted


@LAW
@given(regex=st.sampled_from(REGEXES), numbers=choices, n_wrong=st.integers(0, 2))
def test_as_many_tokens_are_allowed_in_a_row_as_one_after_the_other(
    bytewise: Model, constraints: Constraints, regex: str, numbers: list[int], n_wrong: int
) -> None:
    *_, text = walk(constrain(constraints, regex=regex), numbers, bytewise)
    tokens = [byte(value) for value in text]
    wrong = [byte(ord("!"))] * n_wrong
    constraint = constrain(constraints, regex=regex)
    before = allowed_by(constraint)
    assert constraint.n_allowed([*tokens, *wrong]) == len(tokens)
    assert allowed_by(constraint) == before


@pytest.mark.parametrize("regex", REGEXES)
def test_a_mask_is_the_callers_own(constraints: Constraints, regex: str) -> None:
    one, two = constrain(constraints, regex=regex), constrain(constraints, regex="[a-z]")
    mask = mask_of(one)
    kept = mask.copy()
    mask_of(two)
    assert (mask == kept).all()


@LAW
@given(regex=st.sampled_from(REGEXES), numbers=choices, further=st.lists(st.integers(0, 2**31), min_size=1, max_size=6))
def test_what_is_taken_back_was_never_said(
    bytewise: Model, constraints: Constraints, regex: str, numbers: list[int], further: list[int]
) -> None:
    """Also from where nothing more could follow."""
    constraint = constrain(constraints, regex=regex)
    for _ in walk(constraint, numbers, bytewise):
        pass
    if constraint.is_over:
        return
    before = (allowed_by(constraint), constraint.forced())
    n_further = sum(1 for _ in walk(constraint, further, bytewise)) - 1
    constraint.take_back(n_further)
    assert not constraint.is_over
    assert (allowed_by(constraint), constraint.forced()) == before


def test_jobs_with_one_text_go_their_own_ways(constraints: Constraints) -> None:
    one, two = constrain(constraints, regex="a[bc]+"), constrain(constraints, regex="a[bc]+")
    one.take_forced(9)
    one.accept(byte(ord("b")))
    one.close()
    assert [each.piece for each in two.take_forced(9)] == [b"a"]
    assert is_text(constrain(constraints, regex="a[bc]+"), "acb")


def test_a_text_is_compiled_for_its_own_field(constraints: Constraints) -> None:
    """The same text means something else as a schema than as a regex."""
    assert is_text(constrain(constraints, regex="true"), "true")
    assert is_text(constrain(constraints, json_schema="true"), "[1]")


def test_what_cannot_be_compiled_stays_a_violation(constraints: Constraints) -> None:
    for _ in range(2):
        found = constraints.constrain(submit(regex="(a"))
        assert isinstance(found, Violation)
        assert (found.field, found.constraint) == ("regex", "supported")


@pytest.mark.parametrize("asked", [{"json_schema": '{"$ref":"#"}'}, {"regex": "[^\\x00-\\U0010FFFF]"}])
def test_what_nothing_satisfies_is_a_violation(constraints: Constraints, asked: dict[str, str]) -> None:
    found = constraints.constrain(submit(**asked))
    assert isinstance(found, Violation)
    assert found.message.endswith("nothing can satisfy it")


def test_a_job_without_a_constraint_has_none(constraints: Constraints) -> None:
    assert constraints.constrain(submit()) is None


def test_a_closed_constraint_says_so(constraints: Constraints) -> None:
    constraint = constrain(constraints, regex="a")
    constraint.close()
    constraint.close()
    with pytest.raises(ValueError, match="closed"):
        mask_of(constraint)


def test_forced_runs_stop_where_there_is_a_choice(constraints: Constraints) -> None:
    constraint = constrain(constraints, regex="the (cat|dog) sat")
    assert texts_of(constraint.take_forced(99)) == b"the "
    assert constraint.take_forced(99) == []
    constraint.accept(byte(ord("d")))
    assert texts_of(constraint.take_forced(99)) == b"og sat"
    assert constraint.is_over


def test_an_end_is_never_forced(constraints: Constraints) -> None:
    constraint = constrain(constraints, regex="ab*")
    assert texts_of(constraint.take_forced(99)) == b"a"
    assert constraint.take_forced(99) == []
    assert END in allowed_by(constraint)


def test_a_constraint_in_error_says_so_and_allows_nothing(constraints: Constraints) -> None:
    """A run without an end is more than the library goes through at once."""
    constraint = constrain(constraints, grammar='%llguidance {}\nstart: /[bc]/ rest\nrest: "a" rest')
    constraint.accept(byte(ord("b")))
    assert constraint.take_forced(9) == []
    assert not constraint.is_over
    assert constraint.n_allowed([byte(ord("a"))]) == 0
    with pytest.raises(ValueError, match="the constraint"):
        mask_of(constraint)


@cases
def test_a_text_without_a_choice_that_is_endless_or_too_long_is_refused(
    constraints: Constraints, field: str, text: str
) -> None:
    found = constraints.constrain(submit(**{field: text}))
    assert isinstance(found, Violation)
    assert (found.field, found.constraint) == (field, "supported")
    assert "endless or too long" in found.message


@pytest.mark.long
@pytest.mark.parametrize("n_doublings", [4, 9])
def test_a_run_is_forced_whole_up_to_a_length_and_never_spelled_beyond(
    constraints: Constraints, n_doublings: int
) -> None:
    """A rule that doubles: a few lines can make gigabytes of a text without a choice."""
    names = [f"r{number}" for number in range(n_doublings + 1)]
    rules = [f"{one}: {two} {two}" for one, two in pairwise(names)]
    literal = "0123456789" * 25
    grammar = "\n".join(["%llguidance {}", "start: /[bc]/ r0", *rules, f'{names[-1]}: "{literal}"'])
    constraint = constrain(constraints, grammar=grammar)
    constraint.accept(byte(ord("b")))
    length = len(literal) * 2**n_doublings
    run = constraint.take_forced(10)
    if length <= MAX_FORCED_BYTES:
        assert texts_of(run) == literal.encode() * 2**n_doublings
        assert constraint.is_over
    else:
        assert run == []
        assert not constraint.is_over
        with pytest.raises(ValueError, match="too costly"):
            mask_of(constraint)


def test_without_an_end_a_text_is_over_where_nothing_may_follow(endless: Model) -> None:
    constraint = constrain(constraints_of(endless), regex="a(a|▁)")
    assert texts_of(constraint.take_forced(9)) == b"a"
    assert len(mask_of(constraint)) == endless.n_vocab
    pieces = {endless.piece(TokenId(token)) for token in allowed_by(constraint)}
    assert pieces == {b"a", "▁".encode()}
    constraint.accept(TokenId(allowed_by(constraint)[0]))
    assert constraint.is_over
    assert allowed_by(constraint) == []


@dataclass(frozen=True)
class Loaded:
    model: Model
    constraints: Constraints

    def pieces(self, tokens: list[TokenId]) -> bytes:
        return b"".join(self.model.piece(token) for token in tokens)


@pytest.fixture(scope="module", params=["llama-spm", "phi-3", "gpt-2", "qwen2", "llama-bpe"])
def real(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    [vocabulary] = [each for each in VOCABULARIES if each.name == request.param]
    with load_vocabulary(vocabulary) as model:
        yield Loaded(model, constraints_of(model))


some_text = st.one_of(st.sampled_from(TEXTS), st.text(max_size=30), st.text("<|im_end>s/ \n\t", max_size=30))


@pytest.mark.model
@LAW
@given(text=some_text)
def test_a_spelling_is_the_text_in_tokens_that_have_text(real: Loaded, text: str) -> None:
    tokens = real.model.spell(text.encode())
    assert real.pieces(tokens) == text.encode()
    assert all(real.model.piece(token) for token in tokens)


@pytest.mark.model
@LAW
@given(before=st.sampled_from(["a", "Name", "1", '"']), text=some_text.filter(lambda text: "<" not in text))
def test_a_spelling_is_the_tokenizers_own(real: Loaded, before: str, text: str) -> None:
    """It is what the tokenizer makes of the text behind a byte that it merges with nothing."""
    whole = real.model.tokenize_bytes(f"{before}\n".encode() + text.encode())
    spelled = real.model.spell(text.encode())
    if real.pieces(whole[: len(whole) - len(spelled)]).endswith(f"{before}\n".encode()):
        assert whole[len(whole) - len(spelled) :] == spelled


@pytest.mark.model
def test_there_is_one_spelling_of_nothing(real: Loaded) -> None:
    assert real.model.spell(b"") == []


@pytest.mark.model
@LAW
@given(text=some_text)
def test_a_text_that_is_forced_as_a_whole_is_spelled_as_the_tokenizer_spells_it(real: Loaded, text: str) -> None:
    constraint = constrain(real.constraints, grammar=f"%llguidance {{}}\nstart: {lark_literal(text)}")
    tokens = [each.id for each in constraint.take_forced(999)]
    assert tokens == real.model.spell(text.encode())
    assert constraint.is_over or not text


def lark_literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@pytest.mark.model
@LAW
@given(text=some_text, key=some_text)
def test_what_a_schema_forces_begins_its_only_instance_and_is_never_a_control_token(
    real: Loaded, text: str, key: str
) -> None:
    """The run stops where a character may be written in two ways; what is drawn then is forced on."""
    schema = {"type": "object", "properties": {key: {"const": text}}, "required": [key], "additionalProperties": False}
    constraint = constrain(real.constraints, json_schema=json.dumps(schema))
    said = b""
    while not constraint.is_over:
        run = constraint.take_forced(999)
        assert all(each.piece for each in run)
        said += texts_of(run)
        if not constraint.is_over and not run:
            token = TokenId(allowed_by(constraint)[-1])
            assert real.model.piece(token)
            said += real.model.piece(token)
            constraint.accept(token)
    assert json.loads(said) == {key: text}


@pytest.mark.model
def test_names_of_special_tokens_are_text_to_a_constraint(real: Loaded) -> None:
    constraint = constrain(real.constraints, json_schema=json.dumps({"const": SPECIAL_NAMES}))
    assert texts_of(constraint.take_forced(999)) == json.dumps(SPECIAL_NAMES).encode()
    assert constraint.is_over


@pytest.mark.model
@LAW
@given(numbers=choices)
def test_an_answer_over_a_real_vocabulary_ends_exactly_where_it_is_a_valid_instance(
    real: Loaded, numbers: list[int]
) -> None:
    constraint = constrain(real.constraints, json_schema=json.dumps(SCHEMA))
    ends = real.model.ends
    for text in walk(constraint, numbers, real.model):
        assert set(mask_of(constraint)[ends].tolist()) == {is_valid(text)}
        if constraint.is_over:
            assert allowed_by(constraint) == ends.tolist()


@pytest.mark.model
def test_no_control_token_is_ever_allowed_but_an_end(real: Loaded) -> None:
    constraint = constrain(real.constraints, regex="(?s:.*)")
    without_text = {token for token in range(real.model.n_vocab) if not real.model.piece(TokenId(token))}
    assert without_text & set(allowed_by(constraint)) == set(real.model.ends.tolist())


def test_a_forced_text_that_the_tokenizer_cannot_split_is_forced_byte_by_byte() -> None:
    """If it gets no tokens for the text, the library computes the mask of the place behind it."""
    unsplit = replace(MadeVocabulary().vocabulary(), spell=lambda _: [])
    constraint = Constraints(unsplit, give_back=lambda: None).constrain(submit(regex="<call>[0-9]"))
    assert isinstance(constraint, AnswerConstraint)
    assert allowed_by(constraint) == [ord("<")]
    assert bytes(constraint.forced()) == b"<call>"
