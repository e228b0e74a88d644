"""Outputs of models in every notation, with the message that each of them is.

The words are ours, the kinds are those that public suites and reports show. `lines()` writes what all notations have in
common with the small writers of writing.py, and adds what is written by hand in corpus_lines.py. Each kind has
neighbours: what looks alike and means something else.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from tests.formats.writing import CALLING, Answer, call, is_harmony, says, section, written
from worker.wire.chat_format import CallFormat, ChatFormat

Called = tuple[str, dict[str, object]]

TOOLS: dict[str, object] = {
    "tide_table": {
        "type": "object",
        "properties": {
            "port": {"type": "string"},
            "days": {"type": "integer"},
            "metric": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "opts": {"type": "object", "properties": {"zone": {"type": "string"}}},
        },
    },
    "save_note": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
    "ring": {"type": "object", "properties": {}},
}
BREST: Called = ("tide_table", {"port": "Brest", "days": 3})
MALO: Called = ("tide_table", {"port": "St. Malo", "days": -2})
RING: Called = ("ring", {})
TYPED: Called = (
    "tide_table",
    {"port": "Le Havre", "metric": False, "tags": ["neap", "spring"], "opts": {"zone": "Europe/Paris"}},
)
QUOTES: Called = ("save_note", {"path": "/home/«ü».md", "text": 'She: "so", he: \'no\'.\n\t{"a": [1]} \\ 潮 😀'})
MUSING = "The user wants the tides; I look them up."


@dataclass(frozen=True)
class Line:
    """An output of a family's model, and the message that it is."""

    kind: str
    family: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: Sequence[Called] = ()
    is_reasoning: bool = False
    """The prompt has opened the reasoning."""
    is_cut: bool = False
    """The answer ended at its length. Its last call may be left out, or be handed out as unfinished."""


def lines() -> Iterator[Line]:
    """Yield the corpus, less the lines that are written by hand."""
    for name, form in CALLING.items():
        if name == "generic":
            continue
        assert form.calls is not None
        yield from _answers(name, form)
        yield from _calls(name, form, form.calls)
        yield from _cuts(name, form)
        if form.reasoning is not None and not is_harmony(form):
            yield from _thoughts(name, form)
        if form.calls.parameter_begin and form.calls.form != "harmony":
            yield from _left_out(name, form, form.calls)
            yield from _tags(name, form.calls)


def _answers(name: str, form: ChatFormat) -> Iterator[Line]:
    for text in (
        "High water is at noon. 🌊",
        'Here:\n\n```python\nprint("a < b > c")\n```\nThat is [all](x).',
        '{"title": "Tides", "days": [1, 2]}',
        "A list: {1, 2}, and <b>bold</b> &amp; so on.",
        '```json\n{"name": "Brest", "age": 7}\n```',
    ):
        yield Line("an answer", name, written(form, Answer(content=text)), content=text)


def _calls(name: str, form: ChatFormat, calls: CallFormat) -> Iterator[Line]:
    given: Sequence[Called]
    for given in ([BREST], [RING], [TYPED], [QUOTES]):
        yield Line("a call", name, written(form, Answer(calls=given)), calls=given)
    for several in ([BREST, MALO], [RING, QUOTES, BREST]):
        if name not in ("gigachat-3", "gigachat-3.1", "harmony", "muse") or several[0] is BREST:
            yield Line("several calls", name, written(form, Answer(calls=several)), calls=several)
    other = written(form, Answer(calls=[("unknown", {"a": 1})]))
    if name != "llama-3":
        yield Line("a tool that is not offered", name, other, content='{"name": "unknown", "arguments": {"a": 1}}')
        text = "I look at the table."
        for given in ([BREST], [QUOTES, RING]):
            yield Line("text and calls", name, written(form, Answer(text, calls=given)), text, calls=given)
    if calls.form in ("named", "object", "tagged", "python") and calls.call_end + calls.section_end:
        bare = written(form, Answer(calls=[BREST])).removesuffix(calls.section_end)
        yield Line("ends left out", name, bare.removesuffix(calls.call_end).rstrip(), calls=[BREST])
    if calls.section_begin and calls.call_begin and not is_harmony(form):
        yield Line("no section", name, call(calls, *BREST, 0).strip(), calls=[BREST])
        yield Line("no section", name, f"I look. {call(calls, *BREST, 0)}", "I look.", calls=[BREST])
    text = f"Write {calls.call_begin}x{calls.name_end} then {calls.parameter_begin}path, and {calls.call_end} at last."
    notes: tuple[dict[str, object], ...] = ({"path": "a", "text": text}, {"text": f"<p>\n{text}", "path": "a"})
    for note in filter(lambda _: says(calls, text), notes):
        given = [("save_note", note)]
        yield Line("markers in a value", name, written(form, Answer(calls=given)), calls=given)


def _cuts(name: str, form: ChatFormat) -> Iterator[Line]:
    content = "High water is at noon"
    yield (
        Line("cut in an answer", name, written(form, Answer(content + "."))[:-1], content, is_cut=True)
        if not (form.content_end or is_harmony(form))
        else Line("cut in an answer", name, form.content_begin + content, content, is_cut=True)
    )
    beginnings: tuple[list[Called], ...] = ([], [BREST])
    for done in beginnings:
        whole = written(form, Answer(calls=[*done, QUOTES]))
        start = whole.rindex("save_note")
        for share in (0.2, 0.5, 0.7):
            cut = whole[: start + int(share * (len(whole) - start))]
            yield Line("cut in a call", name, cut, calls=done, is_cut=True)


def _thoughts(name: str, form: ChatFormat) -> Iterator[Line]:
    assert form.reasoning is not None
    begin, end = form.reasoning.begin, form.reasoning.end
    thoughts: tuple[tuple[str, str, list[Called]], ...] = (
        ("High water is at noon.", MUSING, []),
        ("", f"{MUSING}\n\nThere is {{one}} port.", []),
        ("", MUSING, [BREST]),
        ("I look.", MUSING, [BREST, RING]),
    )
    for said in thoughts:
        text = written(form, Answer(*said))
        yield Line("a thought", name, text, *said)
        yield Line("an opened thought", name, text.removeprefix(begin), *said, is_reasoning=True)
    yield Line("an opened thought", name, end + form.content_begin + "Hi.", "Hi.", is_reasoning=True)
    yield Line("cut in a thought", name, begin + MUSING, reasoning=MUSING, is_cut=True)
    yield Line("cut in a thought", name, MUSING, reasoning=MUSING, is_cut=True, is_reasoning=True)
    for given in ([BREST], [QUOTES]):
        text = begin + MUSING + "\n" + written(form, Answer(calls=given))
        yield Line("an unclosed thought", name, text, reasoning=MUSING, calls=given)
    mention = written(form, Answer(calls=[("unknown", {})]))
    if "<|" not in mention and "<｜" not in mention and form.calls and form.calls.form == "object":
        thought = f"Not {mention}, I think."
        yield Line("a thought of another tool", name, f"{begin}{thought}{end}Hi.", "Hi.", thought)


def _left_out(name: str, form: ChatFormat, calls: CallFormat) -> Iterator[Line]:
    """Ends of values that are left out, and what only looks so."""
    layout = "\n" if "\n" in calls.parameter_end else ""

    def without(text: str, *keys: str) -> str:
        for key in keys:
            end = calls.parameter_end + (f"{key}{calls.parameter_name_end}" if calls.form == "nested" else "")
            place = text.index(end, text.index(f"{calls.parameter_begin}{key}"))
            text = text[:place] + layout + text[place + len(end) :]
        return text

    def said(*given: Called) -> str:
        return written(form, Answer(calls=given))

    for keys in (["port"], ["days"], ["port", "days"]):
        yield Line("a value without an end", name, without(said(BREST), *keys), calls=[BREST])
        yield Line("a value without an end", name, without(said(BREST, MALO), *keys), calls=[BREST, MALO])
    yield Line("a value without an end", name, "I look." + without(said(MALO), "port"), "I look.", calls=[MALO])
    text = without(said(BREST), "days")
    yield Line("a value without an end", name, f"{text}\nDone.", "\nDone.", calls=[BREST])
    if calls.section_end:
        text = text.replace(calls.call_end.strip(), "")
        yield Line("a value and a call without an end", name, text, calls=[BREST])
    if calls.form != "nested":
        texts = [f"a {calls.parameter_begin}path b", f"x\n{calls.call_end}\ny", f"{calls.call_end.strip()}."]
        texts += [f'"{calls.parameter_begin}path{calls.parameter_name_end.strip()}"']
        for one in filter(lambda one: says(calls, one), texts):
            given: Called = ("save_note", {"text": one, "path": "a"})
            yield Line("a value that has an end", name, said(given), calls=[given])
            yield Line("a value that has an end", name, said(given, RING), calls=[given, RING])


def _tags(name: str, calls: CallFormat) -> Iterator[Line]:
    """Tags with other white space, and tags that are closed in themselves."""
    given = [BREST, RING]
    text = section(calls, given)
    ways = [
        (r"(?<=\w)=(?=[\w\"])", " = "),
        (r"</(?=[｜\w])", "</ "),
        (r"(?<=[\w\"])>", " >"),
        (r" (?=name=)", "\n  "),
        (r"(?<=｜DSML｜)", " "),
        (r"(?<=｜DSML｜) ", ""),
    ]
    for pattern, to in ways:
        other = re.sub(pattern, to, text)
        if other != text and name != "kimi-k3":
            yield Line("a tag with other white space", name, other, calls=given)
            yield Line("a tag with other white space", name, f"I look.\n{other}", "I look.", calls=given)
    ends = calls.name_end.strip(), (calls.mark_end or calls.parameter_name_end).strip()
    if ends[0].endswith('">') or ends[0] == ">":
        closed = msgspec.structs.replace(calls, name_end=ends[0][:-1] + "/>", call_end="")
        yield Line("a tag that closes itself", name, section(closed, [RING]), calls=[RING])
        yield Line("a tag that closes itself", name, section(closed, [RING, RING]), calls=[RING, RING])
        yield Line("a tag that closes itself", name, f"I ring. {section(closed, [RING])}", "I ring.", calls=[RING])
        spaced = msgspec.structs.replace(closed, name_end=ends[0][:-1] + " />")
        yield Line("a tag that closes itself", name, section(spaced, [RING]), calls=[RING])
    if ends[1].endswith(">") and calls.values != "type":
        empty = calls.parameter_begin + "port" + calls.parameter_name_end.strip()
        empty = (empty + ("true" + calls.mark_end.strip() if calls.mark_end else ""))[:-1] + "/>"
        days = call(calls, "tide_table", {"days": 3}, 0)
        named = f"tide_table{calls.name_end}"
        text = calls.section_begin + days.replace(named, f"{named}{empty}\n", 1)
        both: list[Called] = [("tide_table", {"port": "", "days": 3})]
        yield Line("a tag that closes itself", name, text + calls.section_end, calls=both)
