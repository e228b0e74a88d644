"""The lines of the corpus that are written by hand: what one notation has alone, and texts that speak of markers."""

from collections.abc import Iterator

from tests.formats.corpus import BREST, MALO, MUSING, RING, Called, Line

ONE = '{"name": "tide_table", "arguments": {"port": "Brest", "days": 3}}'
TWO = '{"name": "tide_table", "arguments": {"port": "St. Malo", "days": -2}}'
BODY = '<|message|>{"port": "Brest", "days": 3}'
SAY = "<|start|>assistant<|channel|>"
K3 = (
    '<|open|>call tool="tide_table" index="1"<|sep|><|open|>argument key="port" type="string"<|sep|>Brest'
    '<|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
    "<|close|>call<|sep|>"
)
K3_END = "<|close|>message<|sep|>"
V41 = (
    '<｜DSML｜ invoke name="tide_table">\n<｜DSML｜ parameter name="port" string="true">Brest</｜DSML｜ parameter>\n'
    '<｜DSML｜ parameter name="days" string="false">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n'
)

PROSE = {
    "hermes": ("<tool_call>", "<tool_call> and </tool_call>", "<tools>"),
    "qwen3": ("<tool_call>", "`<tool_call>…</tool_call>`"),
    "qwen3-coder": ("<function=NAME>", "<parameter=NAME>", "</parameter>", "<tool_call>"),
    "glm-4.5": ("<arg_key>", "<arg_value>", "</tool_call>"),
    "glm-4.7": ("<arg_key> and <arg_value>", "<tool_call> of two kinds"),
    "minimax-m1": ("<tool_calls>", "</tool_calls>"),
    "minimax-m2": ('<invoke name="...">', "</invoke>"),
    "minicpm-5": ('<function name="...">', "</function>"),
    "apriel": ("<tool_calls>",),
    "nemotron-nano-v2": ("<TOOLCALL>",),
    "functionary-v3.1": ("<function=NAME>", "</function>"),
    "firefunction": ("functools", "functools and itertools"),
    "command-r-plus": ("Action:", "Action: look"),
    "deepseek-v4": ("DSML", "<invoke name=...>"),
    "lfm2": ("[ring()]", "tool_call_start"),
    "llama-3": ('{"name": "ring"}', "python_tag"),
}
"""Markers that a sentence may speak of."""

SECTIONS = {
    "kimi-k2": ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    "kimi-k3": ("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    "deepseek-v3": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "deepseek-r1": ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
    "deepseek-v3.2": ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    "deepseek-v4": ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    "deepseek-v4.1": ("<｜DSML｜ calls>", "</｜DSML｜ calls>"),
    "minimax-m2": ("<minimax:tool_call>", "</minimax:tool_call>"),
    "minimax-m3": ("]<]minimax[>[<tool_call>", "]<]minimax[>[</tool_call>"),
    "hunyuan": ("<tool_calls:opensource>", "</tool_calls:opensource>"),
    "solar-open": ("<|tool_calls|>", "<|calls|>"),
    "cohere2-moe": ("<|START_ACTION|>", "<|END_ACTION|>"),
    "command-r7b": ("<|START_ACTION|>", "<|END_ACTION|>"),
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "apertus": ("<|tools_prefix|>", "<|tools_suffix|>"),
}

PYTHON: tuple[tuple[str, dict[str, object]], ...] = (
    ('"""a"""', {"text": "a"}),
    ("'''two\nlines'''", {"text": "two\nlines"}),
    ("'a' 'b'", {"text": "ab"}),
    (r'r"C:\new"', {"text": "C:\\new"}),
    ('"ü\\n\\x41"', {"text": "ü\nA"}),
    ('"(a), [b]"', {"text": "(a), [b]"}),
    ("'it\\'s'", {"text": "it's"}),
    ("None", {"text": None}),
    ("+3", {"text": 3}),
    ("1_000", {"text": 1000}),
    ("0x1F", {"text": 31}),
    (".5", {"text": 0.5}),
    ("(1, 2)", {"text": [1, 2]}),
    ("{'a': [True, 'x']}", {"text": {"a": [True, "x"]}}),
)


def by_hand() -> Iterator[Line]:
    """Yield the lines."""
    for family, marks in PROSE.items():
        for mark in marks:
            for text in (f"A call stands in {mark} there.", f"{mark} is what I write."):
                if not text.startswith("{"):
                    yield Line("talk of markers", family, text, text)
    for family, (begin, end) in SECTIONS.items():
        yield Line("a section without a call", family, f"{begin} noise {end}", "noise")
        yield Line("a section without a call", family, begin + end)
        yield Line("a section without a call", family, f"I look.\n{begin}\n{end}", "I look.")
        yield Line("a section without a call", family, f"{begin}No port, no tide.", "No port, no tide.")
        yield Line("a section without a call", family, f"No tide.{end}", "No tide.")
        yield Line("a section without a call", family, f"{begin}\n\n{end}No tide.", "No tide.")
    for value, arguments in PYTHON:
        given: list[Called] = [("save_note", arguments)]
        call = f"save_note(text={value})"
        yield Line("Python's literals", "lfm2", f"<|tool_call_start|>[{call}]<|tool_call_end|>", calls=given)
        text = f"I write.<|tool_call_start|>[{call}, ring()]<|tool_call_end|>"
        yield Line("Python's literals", "lfm2", text, "I write.", calls=[*given, RING])
    for family in ("hermes", "qwen3", "granite-3", "smollm3", "minimax-m1"):
        for text, calls in ((ONE, [BREST]), (f"{ONE}\n{TWO}", [BREST, MALO]), (f"[{ONE}, {TWO}]", [BREST, MALO])):
            yield Line("calls without markers", family, text, calls=calls)
            yield Line("calls without markers", family, f"```json\n{text}\n```", calls=calls)
        yield Line("calls without markers", family, f"{ONE}\n{TWO[:40]}", TWO[:40], calls=[BREST], is_cut=True)
        yield Line("calls without markers", family, ONE[:-9], ONE[:-9], is_cut=True)
    yield from _harmony()
    yield from _kimi()
    yield from _llama()
    yield from _dsml()


def _harmony() -> Iterator[Line]:
    def line(text: str, content: str = "", reasoning: str = "", *calls: Called, is_cut: bool = False) -> Line:
        return Line("gpt-oss", "harmony", text, content, reasoning, calls, is_cut=is_cut)

    thought = f"<|channel|>analysis<|message|>{MUSING}<|end|>"
    yield line(f"{thought}{SAY}final<|message|>Noon.<|return|>", "Noon.", MUSING)
    yield line(f"{thought}{SAY}final<|message|>{ONE}<|return|>", ONE, MUSING)
    yield line(f"<|channel|>final<|message|>{ONE}", ONE)
    yield line("<|channel|>final <|constrain|>json<|message|>[1]<|return|>", "[1]")
    yield line("<|channel|>commentary<|message|>I will look.<|end|>", "I will look.")
    yield line(f"{thought}{SAY}commentary<|message|>I look.<|end|>{SAY}final<|message|>Noon.", "I look.Noon.", MUSING)
    call = f"commentary to=functions.tide_table <|constrain|>json{BODY}<|call|>"
    yield line(f"<|channel|>{call}", "", "", BREST)
    yield line(f"{thought}{SAY}{call}", "", MUSING, BREST)
    yield line(f"{thought}{SAY}commentary<|message|>I look.<|end|>{SAY}{call}", "I look.", MUSING, BREST)
    yield line(f"<|channel|>commentary to=functions.tide_table{BODY}<|call|>", "", "", BREST)
    yield line(f" to=functions.tide_table<|channel|>commentary json{BODY}", "", "", BREST)
    yield line(f"<|channel|>analysis to=functions.tide_table code{BODY}<|call|>", "", "", BREST)
    yield line("<|channel|>commentary to=functions.ring<|message|><|call|>", "", "", RING)
    yield line(f"{thought}{SAY}commentary to=functions.ring <|constrain|>json<|message|><|call|>", "", MUSING, RING)
    yield line("<|channel|>commentary to=functions.ring<|message|>{}<|call|>", "", "", RING)
    yield line(f"<|channel|>??<|message|>{MUSING}<|end|>{SAY}final<|message|>Noon.", "Noon.", MUSING)
    yield line(f"<|channel|>musing<|message|>{MUSING}", "", MUSING)
    mention = "I would write <|channel|>commentary first."
    yield line(f"<|channel|>analysis<|message|>{mention}<|end|>{SAY}final<|message|>Noon.", "Noon.", mention)
    yield line("<|channel|>commentary to=python<|message|>print(3)<|call|>", "", "")
    yield line("<|channel|>analysis to=python code<|message|>print(3)<|call|>", "", "")
    yield line(f"{thought}{SAY}commen", "", MUSING, is_cut=True)
    yield line(f"{thought}{SAY}commentary to=functions.ti", "", MUSING, is_cut=True)
    yield line("<|channel|>final<|message|>Noon", "Noon", is_cut=True)
    yield line(f"{thought}<|start|>assis", "", MUSING, is_cut=True)
    yield line("<|channel|>analysis<|message|>Hm", "", "Hm", is_cut=True)
    yield line("Noon.", "Noon.")


def _kimi() -> Iterator[Line]:
    def line(text: str, content: str = "", reasoning: str = "", *calls: Called, opened: bool = False) -> Line:
        return Line("Kimi K3", "kimi-k3", text, content, reasoning, calls, is_reasoning=opened)

    tools = f"<|open|>tools<|sep|>{K3}<|close|>tools<|sep|>"
    response = "<|open|>response<|sep|>I look.<|close|>response<|sep|>"
    thought = f"<|open|>think<|sep|>{MUSING}<|close|>think<|sep|>"
    for end in ("", K3_END, f"{K3_END}<|end_of_msg|>"):
        yield line(tools + end, "", "", BREST)
        yield line(response + tools + end, "I look.", "", BREST)
        yield line(thought + response + tools + end, "I look.", MUSING, BREST)
        yield line(thought + tools + end, "", MUSING, BREST)
        yield line(response + end, "I look.")
        yield line(response + end, "I look.", opened=True)
        yield line("<|open|>response<|sep|>I look." + end, "I look.", opened=True)
    yield line(f"{MUSING}<|close|>think<|sep|>{response}", "I look.", MUSING, opened=True)
    yield line(f"{MUSING}{response}", "I look.", MUSING, opened=True)
    yield line(K3.replace("Brest", "A &amp; B"), "", "", ("tide_table", {"port": "A &amp; B", "days": 3}))
    for written, key in (("R&amp;D", "R&D"), ("&quot;x&quot;", '"x"'), ("a&lt;b&gt;&apos;", "a<b>'"), ("&#228;", "ä")):
        given = ("tide_table", {key: "Brest", "days": 3})
        yield line(tools.replace('"port"', f'"{written}"'), "", "", given)
        yield line(f"{response}{tools.replace('port', written)}{K3_END}", "I look.", "", given)
    yield line(
        K3 + K3.replace('index="1"', 'index="2"').replace("Brest", "Brest."),
        "",
        "",
        BREST,
        ("tide_table", {"port": "Brest.", "days": 3}),
    )


def _llama() -> Iterator[Line]:
    def line(text: str, content: str = "", *calls: Called) -> Line:
        return Line("Llama 3", "llama-3", text, content, "", calls)

    one, two = ONE.replace("arguments", "parameters"), TWO.replace("arguments", "parameters")
    yield line(f"<|python_tag|>{one}", "", BREST)
    yield line(f"I look.<|python_tag|>{one}", "I look.", BREST)
    yield line(f"I look.\n\n<|python_tag|>\n{one}\n", "I look.", BREST)
    yield line(f"I look. <|python_tag|>{one}; {two}", "I look.", BREST, MALO)
    yield line(f"{one}; {two}", "", BREST, MALO)
    yield line(f"I look.<|python_tag|>{ONE}", "I look.", BREST)
    yield line("I look.<|python_tag|>print(3)", "I look.print(3)")
    yield line('I look.<|python_tag|>{"name": "Ann", "age": 7}', 'I look.{"name": "Ann", "age": 7}')
    yield line(f"A call is {one}.", f"A call is {one}.")
    yield line("<|python_tag|>", "")


def _dsml() -> Iterator[Line]:
    section = f"<｜DSML｜ calls>\n{V41}</｜DSML｜ calls>"
    for family in ("deepseek-v4.1", "deepseek-v4", "deepseek-v3.2"):
        for other in (section, section.replace("｜ ", "｜"), section.replace(" calls", "tool_calls"), V41.strip()):
            yield Line("DeepSeek's sections", family, other, calls=[BREST])
            text = f"{MUSING}</think>I look.\n\n{other}"
            yield Line("DeepSeek's sections", family, text, "I look.", MUSING, [BREST], is_reasoning=True)
        twice = section.replace("</｜DSML｜ calls>", V41 + "</｜DSML｜ calls>\n")
        yield Line("DeepSeek's sections", family, twice, calls=[BREST, BREST])
        text = f'{V41}<｜DSML｜ invoke name="ring"/>\n</｜DSML｜ calls>'
        yield Line("DeepSeek's sections", family, text, calls=[BREST, RING])
