"""The words of the conversation are separated from the words of the template."""

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.formats.render.escapes import ControlNames, Escaper, Escapes, Json, texts

LAW = settings(max_examples=300)

NAMES = ControlNames(["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "<｜end▁of｜>", "PAD"])
SOURCE = "{% if '</think>' in x and x != '][' %}<|im_end|>{{ x.name }}<|im_end|>{% endif %}"

PIECES = st.sampled_from(
    [*sorted(NAMES.all), "<|im_", "end|>", "<", ">", "|", "PA", "D", "</think>", " ", "s", "im_end"]
)
TEXTS = st.lists(st.one_of(PIECES, st.text(max_size=5)), max_size=8).map("".join)
VALUES: st.SearchStrategy[Json] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXTS),
    lambda values: st.one_of(st.lists(values, max_size=3), st.dictionaries(TEXTS, values, max_size=3)),
    max_leaves=8,
)


@LAW
@given(VALUES)
def test_no_escaped_text_has_a_name_and_each_is_restored(value: Json) -> None:
    escapes = Escapes(Escaper(SOURCE, NAMES), value)
    escaped = list(texts(escapes.escape(value)))
    assert [text for text in escaped if NAMES.has_one(text)] == []
    assert [escapes.restore(text) for text in escaped] == list(texts(value))


@LAW
@given(st.lists(TEXTS, min_size=2, max_size=4))
def test_escaped_texts_make_no_name_together(parts: list[str]) -> None:
    """The parts are cut off and joined, and nothing of the template's comes between."""
    escapes = Escapes(Escaper(SOURCE, NAMES), [*parts])
    joined = "".join(texts(escapes.escape([*parts])))
    assert not NAMES.has_one(joined)


@LAW
@given(VALUES)
def test_escapes_are_not_of_the_conversation(value: Json) -> None:
    first = Escapes(Escaper(SOURCE, NAMES), value)
    again = Escapes(Escaper(SOURCE, NAMES), [value, first.escape(value), first.cut])
    assert again.cut not in "".join(texts([value, first.escape(value)]))
    assert again.cut != first.cut


def test_words_that_the_template_searches_for_are_not_escaped() -> None:
    escapes = Escapes(Escaper(SOURCE, NAMES), "")
    assert escapes.escape("a</think>b") == "a</think>b"
    assert escapes.escape("a<think>b") != "a<think>b"
    assert escapes.escape("][") != "]["


def test_a_word_that_signs_would_make_a_name_is_escaped_unless_the_template_contains_it() -> None:
    escapes = Escapes(Escaper(SOURCE, NAMES), "")
    assert not NAMES.has_one(f"<{escapes.escape('s')}>")
    assert not NAMES.has_one(f"[{escapes.escape('INST')}]")
    assert not NAMES.has_one(f"<|{escapes.escape('im_start')}|>")
    assert escapes.escape("name") == "name"
    assert list(texts(escapes.escape({"name": 1}))) == ["name"]


def test_known_roles_are_not_escaped_and_other_texts_in_their_place_are() -> None:
    escapes = Escapes(Escaper("", ControlNames(["<|user|>", "<|end|>"])), "")
    assert escapes.escape({"role": "user"}) == {"role": "user"}
    assert all(value != role for role in ("end", "<|end|>") for value in texts(escapes.escape({"role": role})))


def test_names_are_found_longest_first_and_none_in_another() -> None:
    names = ControlNames(["<a>", "<a><b>", ""])
    assert names.spans("x<a><b><a>") == [(1, 7), (7, 10)]
    assert ControlNames([]).spans("x") == []
