"""The words of the conversation are separated from the words of the template."""

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.chat.marks import Json, Marker, Names, texts

LAW = settings(max_examples=300)

NAMES = Names(["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "<｜end▁of｜>", "PAD"])
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
def test_no_marked_text_has_a_name_and_each_is_the_text_again_without_its_marks(value: Json) -> None:
    marks = Marker(SOURCE, NAMES).marks_for(value)
    marked = list(texts(marks.mark(value)))
    assert [text for text in marked if NAMES.has_one(text)] == []
    assert [marks.take_off(text) for text in marked] == list(texts(value))


@LAW
@given(st.lists(TEXTS, min_size=2, max_size=4))
def test_marked_texts_make_no_name_together(parts: list[str]) -> None:
    """The parts are cut off and joined, and nothing of the template's comes between."""
    marks = Marker(SOURCE, NAMES).marks_for([*parts])
    joined = "".join(texts(marks.mark([*parts])))
    assert not NAMES.has_one(joined)


@LAW
@given(VALUES)
def test_marks_are_not_of_the_conversation(value: Json) -> None:
    first = Marker(SOURCE, NAMES).marks_for(value)
    again = Marker(SOURCE, NAMES).marks_for([value, first.mark(value), first.cut])
    assert again.cut not in "".join(texts([value, first.mark(value)]))
    assert again.cut != first.cut


def test_words_that_the_template_searches_for_are_not_marked() -> None:
    marks = Marker(SOURCE, NAMES).marks_for("")
    assert marks.mark("a</think>b") == "a</think>b"
    assert marks.mark("a<think>b") != "a<think>b"
    assert marks.mark("][") != "]["


def test_a_word_that_signs_would_make_a_name_is_marked_unless_the_template_contains_it() -> None:
    marks = Marker(SOURCE, NAMES).marks_for("")
    assert not NAMES.has_one(f"<{marks.mark('s')}>")
    assert not NAMES.has_one(f"[{marks.mark('INST')}]")
    assert not NAMES.has_one(f"<|{marks.mark('im_start')}|>")
    assert marks.mark("name") == "name"
    assert list(texts(marks.mark({"name": 1}))) == ["name"]


def test_known_roles_are_not_marked_and_other_texts_in_their_place_are() -> None:
    marks = Marker("", Names(["<|user|>", "<|end|>"])).marks_for("")
    assert marks.mark({"role": "user"}) == {"role": "user"}
    assert all(value != role for role in ("end", "<|end|>") for value in texts(marks.mark({"role": role})))


def test_names_are_found_longest_first_and_none_in_another() -> None:
    names = Names(["<a>", "<a><b>", ""])
    assert names.spans("x<a><b><a>") == [(1, 7), (7, 10)]
    assert Names([]).spans("x") == []
