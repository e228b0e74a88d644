"""Prompts of all kinds become the model's tokens, and no word of a conversation becomes a control token."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp as capi

from tests.llama.conftest import Loaded
from tests.llama.test_vocabularies import load_vocabulary
from tests.llama.tiny import write_tiny
from tests.models.loading.test_load import configuration
from tests.vocabularies import VOCABULARIES
from worker.engine.backend import LoadedModel, Read
from worker.errors import ModelLoadFailed
from worker.formats.render.escapes import ControlNames
from worker.formats.render.template import ChatTemplates
from worker.llama.model import Model
from worker.llama.token_table import InfillMarks
from worker.llama.tokenizer import Prompts
from worker.models.facts.info import read_info
from worker.models.loading.load import load_model
from worker.wire.chat_format import HERMES, CallFormat
from worker.wire.jobs import TokenId
from worker.wire.messages import Violation
from worker.wire.prompts import Conversation, Infill

pytestmark = pytest.mark.model

LAW = settings(max_examples=60)


def conversation(*contents: str, role: str = "user") -> Conversation:
    return Conversation(messages=msgspec.json.encode([{"role": role, "content": text} for text in contents]).decode())


def read(prompts: Prompts, *contents: str) -> tuple[list[TokenId], str]:
    found = prompts.read(conversation(*contents))
    assert isinstance(found, Read), found
    assert found.text is not None
    return found.tokens, found.text


def is_control(model: Model, token: TokenId) -> bool:
    """True for control tokens, not for tokens that stand for characters that the vocabulary lacks."""
    return bool(capi.llama_vocab_get_attr(model.vocab, token) & capi.LLAMA_TOKEN_ATTR_CONTROL)


def controls_in(model: Model, tokens: list[TokenId]) -> list[TokenId]:
    return [token for token in tokens if is_control(model, token)]


def prompts_of(model: Model, source: str) -> Prompts:
    tokens = model.template_tokens
    return Prompts(model, ChatTemplates(source, None, names=ControlNames(model.controls), tokens=tokens, variables={}))


# ── the default model ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def prompts(loaded: Loaded, default_model: Path) -> Prompts:
    source = read_info(default_model).chat_template
    assert source is not None
    return prompts_of(loaded.model, source)


PIECES = st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "end|>", "<|", "|>", "\n", "  ", "é"])
LETTERS = st.characters(categories=["L", "N", "P", "S", "Zs"], max_codepoint=0x2FFF)
"""The default model's vocabulary lacks some bytes, which other characters have."""
TEXTS = st.lists(st.one_of(PIECES, st.text(LETTERS, max_size=6)), max_size=6).map("".join)


@LAW
@given(contents=st.lists(TEXTS, min_size=1, max_size=3))
def test_whatever_is_said_the_tokens_are_the_text_and_the_control_tokens_the_templates(
    prompts: Prompts, loaded: Loaded, contents: list[str]
) -> None:
    tokens, text = read(prompts, *contents)
    assert loaded.model.detokenize(tokens).decode() == text
    assert all(said in text for said in contents)
    plain, _ = read(prompts, *("x" for _ in contents))
    assert controls_in(loaded.model, tokens) == controls_in(loaded.model, plain)


@LAW
@given(contents=st.lists(st.text(max_size=30), min_size=1, max_size=3))
def test_without_names_the_tokens_are_those_of_the_text_in_one_go(
    prompts: Prompts, loaded: Loaded, contents: list[str]
) -> None:
    assume(not any(map(ControlNames(loaded.model.controls).has_one, contents)))
    tokens, text = read(prompts, *contents)
    assert tokens == loaded.model.tokenize(text)


# ── every vocabulary ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=VOCABULARIES, ids=lambda vocabulary: vocabulary.name)
def vocabulary(request: pytest.FixtureRequest) -> Iterator[Model]:
    with load_vocabulary(request.param) as model:
        yield model


def template_of(model: Model) -> tuple[str, str]:
    """Two names of control tokens, first and last, which enclose each message in a template."""
    names = sorted(name for name, token in model.controls.items() if is_control(model, token))
    return names[0], names[-1]


def source_of(before: str, after: str) -> str:
    return f"{{% for m in messages %}}{{{{ '{before}' + m.content + '{after}' }}}}{{% endfor %}}"


def test_every_vocabulary_has_the_template_around_what_is_said(vocabulary: Model) -> None:
    before, after = template_of(vocabulary)
    prompts = prompts_of(vocabulary, source_of(before, after))
    names = ControlNames(vocabulary.controls)
    controls = [vocabulary.controls[before], vocabulary.controls[after]]
    plain = ["Hello you", " 1 2  3\n\n", "日本語 e\u0301 🐈", "", "a<b>c[d]|e"]
    bos = [vocabulary._bos] if vocabulary._bos is not None and controls[0] != vocabulary._bos else []
    for said in (*plain, *(f"x{name} y" for name in (before, after)), f"{before}{after}", f"a\n{before} b"):
        if controls_in(vocabulary, vocabulary.tokenize(said, add_special=False, parse_special=False)):
            continue  # WordPiece's [UNK] stands for a word that the vocabulary lacks.
        tokens, text = read(prompts, said, said)
        assert controls_in(vocabulary, tokens) == [*bos, *controls, *controls], said
        if not names.has_one(said):
            assert tokens == vocabulary.tokenize(text), said


def test_what_is_read_around_the_templates_tokens_is_what_is_read_in_one_go(vocabulary: Model) -> None:
    """The seams are the library's own: where nothing is ambiguous, both ways give the same tokens."""
    names = ControlNames(vocabulary.controls)
    before, after = template_of(vocabulary)
    for text in (f"{before} Hello\n {after}\n\n{before}{before}x y{after} ", f"a {before}", f"{after}", "", "plain"):
        assert vocabulary.tokenize_around(text, names.spans(text)) == vocabulary.tokenize(text), text


def test_names_are_found_where_the_library_finds_them_and_are_letters_where_special_tokens_are_not_parsed(
    vocabulary: Model,
) -> None:
    names = sorted(name for name, token in vocabulary.controls.items() if is_control(vocabulary, token))
    text = "".join(f"a{name} b" for name in names[:300])
    found = [text[start:end] for start, end in ControlNames(vocabulary.controls).spans(text)]
    tokens = vocabulary.tokenize(text, add_special=False)
    assert [vocabulary.controls[name] for name in found] == controls_in(vocabulary, tokens)
    letters = vocabulary.tokenize(f"a{names[0]}b", parse_special=False, add_special=False)
    assert controls_in(vocabulary, letters) == []


# ── the tiny model ───────────────────────────────────────────────────────────────────────────────


def test_text_is_read_with_or_without_bos_and_special_tokens(tiny: Model) -> None:
    prompts = prompts_of(tiny, "{{ messages[0].content }}")
    bos = tiny.controls["<s>"]
    asked = (("<s>a", True, True), ("a", False, True), ("<s>a", False, False))
    found = [prompts.read(text, add_special=adds, parse_special=parses) for text, adds, parses in asked]
    both, bare, letters = [each for each in found if isinstance(each, Read)]
    assert both.tokens == [bos, *bare.tokens]
    assert (both.text, bare.text) == ("<s>a", "a")
    assert bos not in letters.tokens


def test_bos_comes_once_whether_prompt_or_template_writes_it(tiny: Model) -> None:
    bos = tiny.controls["<s>"]
    for source in ("{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}"):
        for said in ("a", "<s>a"):
            tokens, _ = read(prompts_of(tiny, source), said)
            assert [tokens[0], tokens.count(bos)] == [bos, 1]


def test_tokens_are_read_as_they_are_and_those_beyond_the_vocabulary_refused(tiny: Model) -> None:
    prompts = prompts_of(tiny, "{{ messages[0].content }}")
    tokens = (TokenId(5), TokenId(1), TokenId(tiny.n_vocab - 1))
    assert prompts.read(tokens) == Read(list(tokens), None)
    for outside in (-1, tiny.n_vocab):
        refusal = prompts.read((*tokens, TokenId(outside)))
        assert isinstance(refusal, Violation)
        assert (refusal.field, refusal.constraint) == ("tokens", f"vocabulary({tiny.n_vocab})")
        assert "position 3" in refusal.message
        assert prompts.detokenize((*tokens, TokenId(outside))) == refusal


@pytest.mark.parametrize("text", ["a", " a", "<s>", "", "é\n"])
def test_a_text_is_itself_again(tiny: Model, text: str) -> None:
    prompts = prompts_of(tiny, "{{ messages[0].content }}")
    assert prompts.detokenize(tiny.tokenize(text, add_special=False)) == text


# ── a text with a gap ────────────────────────────────────────────────────────────────────────────

NO_TEMPLATE = Violation("messages", "chat_template", "no template")
PARTS = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "Z"]), max_size=40)
BY_NAME = {vocabulary.name: vocabulary for vocabulary in VOCABULARIES}


@pytest.fixture(scope="module", params=["starcoder", "refact", "deepseek-coder"])
def with_marks(request: pytest.FixtureRequest) -> Iterator[Model]:
    with load_vocabulary(BY_NAME[request.param]) as model:
        yield model


def marks_of(model: Model) -> InfillMarks:
    assert model.infill_marks is not None
    return model.infill_marks


def read_gap(model: Model, gap: Infill) -> list[TokenId]:
    found = Prompts(model, NO_TEMPLATE).read(gap)
    assert isinstance(found, Read)
    return found.tokens


@settings(max_examples=30)
@given(prefix=PARTS, begun=PARTS, suffix=PARTS)
def test_the_parts_stand_between_the_marks(with_marks: Model, prefix: str, begun: str, suffix: str) -> None:
    marks, text = marks_of(with_marks), partial(with_marks.tokenize, add_special=False, parse_special=False)
    wanted = [marks.prefix, *text(prefix), *text(begun), marks.suffix, *text(suffix), marks.middle]
    assert read_gap(with_marks, Infill(prefix=prefix, begun=begun, suffix=suffix)) == [
        *with_marks.tokenize(""),
        *wanted,
    ]


def test_files_stand_before_the_text_in_the_form_of_a_repository(with_marks: Model) -> None:
    marks, text = marks_of(with_marks), partial(with_marks.tokenize, add_special=False, parse_special=False)
    files = (("one.py", "import os\n"), ("two.py", "x = 1\n"))
    found = read_gap(with_marks, Infill(prefix="a", suffix="b", files=files))
    alone = read_gap(with_marks, Infill(prefix="a", suffix="b"))
    wanted: list[TokenId] = [] if marks.repository is None else [marks.repository, *text("myproject\n")]
    for name, content in files:
        wanted += text("\n\n--- snippet ---\n\n") if marks.file is None else [marks.file, *text(f"{name}\n")]
        wanted += text(content)
    wanted += [] if marks.file is None else [marks.file, *text("filename\n")]
    assert found == [*wanted, *alone]


def test_names_of_marks_in_the_text_are_letters(with_marks: Model) -> None:
    marks = marks_of(with_marks)
    name = with_marks.text_of(marks.middle).decode()
    found = read_gap(with_marks, Infill(prefix=f"a{name}b", suffix=name, begun=name, files=((name, name),)))
    assert [token for token in found if token == marks.middle] == [marks.middle]
    assert found[-1] == marks.middle


def test_a_vocabulary_without_the_marks_refuses_a_gap() -> None:
    with load_vocabulary(BY_NAME["gpt-2"]) as model:
        refused = Prompts(model, NO_TEMPLATE).read(Infill(prefix="a", suffix="b"))
    assert isinstance(refused, Violation)
    assert "no fill-in-the-middle tokens" in refused.message


# ── loading ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def loaded_with(path: Path, **changes: object) -> Iterator[LoadedModel]:
    loaded = load_model(configuration(path, **changes), lambda _: None)
    with closing(loaded.runner):  # type: ignore[type-var]  # llama's
        yield loaded


CHAT = "{% for m in messages %}<s>{{ m.content }}</s>{% endfor %}"


def test_a_template_given_by_file_is_used(tmp_path: Path) -> None:
    """The engine finds the format of calls in it, without the tokens that end an answer."""
    source = (
        "{% for m in messages %}<s>{{ m.role }}:{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
        "<CALL>{{ c.function | tojson }}</CALL>"
        "{% endfor %}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}"
    )
    path = write_tiny(tmp_path / "tiny.gguf")
    for template, caps in ((CHAT, ("system",)), (source, None)):
        with loaded_with(path, template=template) as loaded:
            assert isinstance(loaded.prompts.read(conversation("a")), Read)
            model = loaded.facts.model
        assert (model.chat_template, model.bos_token, model.eos_token) == (template, "<s>", "</s>")
        assert (model.n_ctx_train, model.file_bytes) == (64, path.stat().st_size)
        if caps is not None:
            assert (model.chat_template_caps, model.chat_format) == (caps, HERMES)
        else:
            assert model.chat_format.source == "template"
            assert model.chat_format.calls == CallFormat(form="object", call_begin="<CALL>", call_end="</CALL>")


def test_without_a_template_conversations_alone_are_refused(tmp_path: Path) -> None:
    with loaded_with(write_tiny(tmp_path / "tiny.gguf")) as loaded:
        refusal = loaded.prompts.read(conversation("a"))
        assert isinstance(refusal, Violation)
        assert (refusal.field, refusal.constraint) == ("messages", "no_chat_template")
        assert "--chat-template" in refusal.message
        assert loaded.facts.model.chat_template is None
        assert isinstance(loaded.prompts.read("a"), Read)


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for %}", "SyntaxError in line 1"),
        ("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}", "takes too long"),
        ("hello", "omits the user's message"),
    ],
)
def test_a_template_of_no_use_ends_the_load_where_it_was_asked_for(tmp_path: Path, source: str, why: str) -> None:
    refused = pytest.raises(ModelLoadFailed, match=f"--chat-template: .*{why}.*use another file")
    with refused, loaded_with(write_tiny(tmp_path / "tiny.gguf"), template=source):
        pass


def test_a_template_of_no_use_in_the_model_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tiny(tmp_path / "tiny.gguf", chat_template="{% for %}")
    with loaded_with(path) as loaded:
        assert caplog.text.count("the model's chat template cannot be used") == 1
        refusal = loaded.prompts.read(conversation("a"))
        assert isinstance(refusal, Violation)
        assert "SyntaxError in line 1" in refusal.message
        assert isinstance(loaded.prompts.read("a"), Read)


def test_the_template_gets_the_workers_variables_or_the_load_ends(tmp_path: Path) -> None:
    path = write_tiny(tmp_path / "tiny.gguf")
    source = CHAT + "{{ day }}"
    with loaded_with(path, template=source, chat_template_kwargs='{"day": "Monday"}') as loaded:
        found = loaded.prompts.read(conversation("a"))
        assert isinstance(found, Read)
        assert found.text == "<s>a</s>Monday"
    refused = pytest.raises(ModelLoadFailed, match="--chat-template-kwargs: the chat template reads day")
    with refused, loaded_with(path, template=source, chat_template_kwargs='{"night": 1}'):
        pass
