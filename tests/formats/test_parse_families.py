"""Each family's traps: what its models write beside the form of their template, and how that is read."""

import json
from dataclasses import dataclass

import pytest

from tests.formats.test_parse import an_id, read
from tests.formats.writing import FORMATS
from worker.formats.read.parse import Call, Message, message_of

TOOLS: dict[str, object] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "hours": {"type": "array", "items": {"type": "number"}},
            "is_metric": {"type": "boolean"},
            "note": {"type": ["string", "null"]},
            "place": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}}},
            "limit": {"anyOf": [{"type": "string"}, {"type": "number"}, {"type": "object"}]},
            "unit": {"enum": ["kelvin", "celsius"]},
            "stations": {"$ref": "#/$defs/stations"},
            "point": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
        },
        "$defs": {
            "point": {"type": "object", "properties": {"name": {"type": "string"}}},
            "stations": {"type": "array", "items": {"type": "object", "properties": {"id": {"type": "string"}}}},
        },
    },
    "save": {"type": "object", "properties": {"path": {"type": "string"}, "text": {"type": "string"}}},
    "stop": {"type": "object", "properties": {}},
    "Office.plan": {"type": "object", "properties": {"who": {"type": "array", "items": {"type": "string"}}}},
}


@dataclass(frozen=True)
class Case:
    """A text of a family's model, and the message that it is."""

    family: str
    what: str
    text: str
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, dict[str, object]], ...] = ()
    is_reasoning: bool = False


def coder(*parameters: tuple[str, str], name: str = "weather", begin: str = "<tool_call>\n") -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"{begin}<function={name}>\n{inner}</function>\n</tool_call>"


def glm(*parameters: tuple[str, str]) -> str:
    inner = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in parameters)
    return f"<tool_call>weather\n{inner}</tool_call>"


def dsml(section: str, *parameters: tuple[str, bool, str]) -> str:
    inner = "".join(
        f'<｜DSML｜parameter name="{key}" string="{str(is_text).lower()}">{value}</｜DSML｜parameter>\n'
        for key, is_text, value in parameters
    )
    return f'<｜DSML｜{section}>\n<｜DSML｜invoke name="weather">\n{inner}</｜DSML｜invoke>\n</｜DSML｜{section}>'


def kimi(*names: str, arguments: str = '{"days": 2}') -> str:
    calls = (
        f"<|tool_call_begin|>functions.{name}:{i}<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
        for i, name in enumerate(names)
    )
    return f"<|tool_calls_section_begin|>{''.join(calls)}<|tool_calls_section_end|>"


def m3(inner: str) -> str:
    text = f'<tool_call>\n~<invoke name="weather">{inner}~</invoke>\n~</tool_call>'
    return "]<]minimax[>[" + text.replace("~", "]<]minimax[>[")


def muse(inner: str) -> str:
    return f'<atem:function_calls>\n<atem:invoke name="weather">\n{inner}</atem:invoke>\n</atem:function_calls>'


HARMONY_BODY = '<|message|>{"days": 2}'
TWO: tuple[tuple[str, dict[str, object]], ...] = (("weather", {"days": 2}),)
ROME: tuple[tuple[str, dict[str, object]], ...] = (("weather", {"city": "Rome"}),)
WEATHER = '{"name": "weather", "arguments": {"days": 2}}'
OTHER = '{"name": "x", "arguments": {"days": 2}}'
STOP: tuple[tuple[str, dict[str, object]], ...] = (("stop", {}),)
FINAL = "<|start|>assistant<|channel|>final<|message|>"

CASES = (
    # Hermes, Qwen
    Case("hermes", "no line breaks", f"<tool_call>{WEATHER}</tool_call>", calls=TWO),
    Case("hermes", "text before", f"Let me see.\n\n<tool_call>\n{WEATHER}\n</tool_call>", "Let me see.", calls=TWO),
    Case("hermes", "text behind", f"<tool_call>\n{WEATHER}\n</tool_call>\nDone.", "\nDone.", calls=TWO),
    Case("hermes", "no end", f"<tool_call>\n{WEATHER}", calls=TWO),
    Case("hermes", "one brace too few", f"<tool_call>\n{WEATHER[:-1]}\n</tool_call>", calls=TWO),
    Case("hermes", "one brace too many", f"<tool_call>\n{WEATHER}}}\n</tool_call>", calls=TWO),
    Case(
        "hermes",
        "arguments before the name",
        '<tool_call>{"arguments": {"days": 2}, "name": "weather"}</tool_call>',
        calls=TWO,
    ),
    Case(
        "hermes",
        "arguments as a string",
        '<tool_call>{"name": "weather", "arguments": "{\\"days\\": 2}"}</tool_call>',
        calls=TWO,
    ),
    Case("hermes", "no arguments", '<tool_call>\n{"name": "stop"}\n</tool_call>', calls=(("stop", {}),)),
    Case(
        "hermes", "parameters", '<tool_call>\n{"name": "weather", "parameters": {"days": 2}}\n</tool_call>', calls=TWO
    ),
    Case("hermes", "talk of markers", "Calls stand in <tool_call> tags.", "Calls stand in <tool_call> tags."),
    Case(
        "hermes",
        "talk of both markers",
        "Write <tool_call> first and </tool_call> last.",
        "Write <tool_call> first and </tool_call> last.",
    ),
    Case("hermes", "an object that is no call", '<tool_call>\n{"x": 1}\n</tool_call>', '{"x": 1}'),
    Case("hermes", "a marker alone", "<tool_call>", ""),
    Case(
        "hermes",
        "a marker in a string",
        '<tool_call>\n{"name": "save", "arguments": {"text": "</tool_call>\\n<tool_call>\\" }"}}\n</tool_call>',
        calls=(("save", {"text": '</tool_call>\n<tool_call>" }'}),),
    ),
    Case(
        "qwen3",
        "reasoning that names a call",
        f"<think>\nI write <tool_call>{WEATHER}</tool_call> now.\n</think>\n\n<tool_call>\n{WEATHER}\n</tool_call>",
        reasoning=f"I write <tool_call>{WEATHER}</tool_call> now.",
        calls=TWO,
    ),
    Case("qwen3", "the prompt opens", "I see.\n</think>\n\nHi.", "Hi.", "I see.", is_reasoning=True),
    Case("qwen3", "the prompt opens, nothing thought", "</think>\n\nHi.", "Hi.", is_reasoning=True),
    Case("qwen3", "only thought", "I am still thinking", "", "I am still thinking", is_reasoning=True),
    # Qwen3-Coder and its relatives
    Case("qwen3-coder", "a number", coder(("days", "2")), calls=TWO),
    Case("qwen3-coder", "no opening", coder(("days", "2"), begin=""), calls=TWO),
    Case("qwen3-coder", "text, no opening", "Look:\n" + coder(("days", "2"), begin=""), "Look:", calls=TWO),
    Case("qwen3-coder", "no end", coder(("days", "2")).removesuffix("\n</tool_call>"), calls=TWO),
    Case("qwen3-coder", "a number in a string", coder(("city", "12")), calls=(("weather", {"city": "12"}),)),
    Case("qwen3-coder", "quotes in a string", coder(("city", '"Rome"')), calls=(("weather", {"city": '"Rome"'}),)),
    Case("qwen3-coder", "a line break at the end", coder(("city", "a\n")), calls=(("weather", {"city": "a\n"}),)),
    Case("qwen3-coder", "an indented text", coder(("city", "    a")), calls=(("weather", {"city": "    a"}),)),
    Case("qwen3-coder", "an empty text", coder(("city", "")), calls=(("weather", {"city": ""}),)),
    Case("qwen3-coder", "null or text: null", coder(("note", "null")), calls=(("weather", {"note": None}),)),
    Case("qwen3-coder", "null or text: text", coder(("note", "nullable")), calls=(("weather", {"note": "nullable"}),)),
    Case("qwen3-coder", "null or text: number", coder(("note", "7")), calls=(("weather", {"note": "7"}),)),
    Case("qwen3-coder", "union: object", coder(("limit", '{"a": 1}')), calls=(("weather", {"limit": {"a": 1}}),)),
    Case("qwen3-coder", "union: number", coder(("limit", "7")), calls=(("weather", {"limit": 7}),)),
    Case("qwen3-coder", "union: broken", coder(("limit", "{not")), calls=(("weather", {"limit": "{not"}),)),
    Case("qwen3-coder", "union: text", coder(("limit", "7 km")), calls=(("weather", {"limit": "7 km"}),)),
    Case("qwen3-coder", "an enum", coder(("unit", "kelvin")), calls=(("weather", {"unit": "kelvin"}),)),
    Case("qwen3-coder", "Python's True", coder(("is_metric", "True")), calls=(("weather", {"is_metric": True}),)),
    Case("qwen3-coder", "text for a number", coder(("days", "two")), calls=(("weather", {"days": "two"}),)),
    Case("qwen3-coder", "no number of JSON's", coder(("days", "NaN")), calls=(("weather", {"days": "NaN"}),)),
    Case(
        "qwen3-coder",
        "a reference",
        coder(("stations", '[{"id": "7"}]')),
        calls=(("weather", {"stations": [{"id": "7"}]}),),
    ),
    Case("qwen3-coder", "an unknown parameter", coder(("x", "[1]")), calls=(("weather", {"x": [1]}),)),
    Case("qwen3-coder", "no parameters", coder(name="stop"), calls=(("stop", {}),)),
    Case(
        "qwen3-coder",
        "markers in a text",
        coder(("path", "</parameter> a"), ("text", "<parameter=x>\n</function></think>"), name="save"),
        calls=(("save", {"path": "</parameter> a", "text": "<parameter=x>\n</function></think>"}),),
    ),
    Case(
        "qwen3-coder",
        "the end twice",
        coder(("city", "Rome\n</parameter>")),
        calls=ROME,
    ),
    Case(
        "qwen3-coder",
        "HTML",
        coder(("text", "<p>\n <b>a</b>\n</p>"), name="save"),
        calls=(("save", {"text": "<p>\n <b>a</b>\n</p>"}),),
    ),
    Case("qwen3-coder", "talk of a function", "Write <function=NAME> first.", "Write <function=NAME> first."),
    Case(
        "qwen3.5",
        "a call in the reasoning",
        "I look.\n" + coder(("days", "2")),
        reasoning="I look.",
        calls=TWO,
        is_reasoning=True,
    ),
    Case(
        "seed-oss",
        "no line breaks around values",
        "<seed:think>a</seed:think>\n<seed:tool_call>\n<function=weather>\n<parameter=city>Rome</parameter>\n"
        "<parameter=hours>[1, 2.5]</parameter>\n</function>\n</seed:tool_call>",
        reasoning="a",
        calls=(("weather", {"city": "Rome", "hours": [1, 2.5]}),),
    ),
    # harmony
    Case(
        "harmony",
        "analysis, then an answer",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.<|return|>",
        "Hi.",
        "Hm.",
    ),
    Case("harmony", "text on commentary", "<|channel|>commentary<|message|>Hi.", "Hi."),
    Case("harmony", "no header", "Hi there.", "Hi there."),
    Case(
        "harmony",
        "a message that begins before another has ended",
        "<|channel|>analysis<|message|>Hm<|start|>assistant<|channel|>final<|message|>Hi.",
        "Hi.",
        "Hm",
    ),
    Case("harmony", "recipient in the role", f" to=functions.weather<|channel|>commentary{HARMONY_BODY}", calls=TWO),
    Case("harmony", "a call on analysis", f"<|channel|>analysis to=functions.weather{HARMONY_BODY}<|call|>", calls=TWO),
    Case("harmony", "a type", f"<|channel|>commentary to=functions.weather <|constrain|>json{HARMONY_BODY}", calls=TWO),
    Case("harmony", "a bare type", f"<|channel|>commentary to=functions.weather json{HARMONY_BODY}", calls=TWO),
    Case(
        "harmony",
        "a stray commentary",
        "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hi.",
        "Hi.",
        "Hm.",
    ),
    Case(
        "harmony",
        "code for a tool of its own",
        "<|channel|>commentary to=python <|constrain|>code<|message|>print(1)<|call|>",
        reasoning="print(1)",
    ),
    Case(
        "harmony", "a browser's call", '<|channel|>analysis to=browser.find<|message|>{"a": 1}<|call|>', "", '{"a": 1}'
    ),
    Case("harmony", "a tool without its prefix", f"<|channel|>commentary to=weather{HARMONY_BODY}<|call|>", calls=TWO),
    Case("harmony", "a tool that is not offered", f"<|channel|>commentary to=functions.x{HARMONY_BODY}", OTHER),
    Case(
        "harmony", "code for a function", "<|channel|>commentary to=functions.weather<|message|>f()<|call|>", "", "f()"
    ),
    Case(
        "harmony",
        "words behind a call",
        f"<|channel|>commentary to=functions.weather{HARMONY_BODY} Hm.",
        "",
        "Hm.",
        TWO,
    ),
    *(
        Case(
            "harmony", f"an empty call, {name}", f"<|channel|>commentary to=functions.stop<|message|>{text}", calls=STOP
        )
        for name, text in (
            ("ended", "<|call|>"),
            ("at the end", ""),
            ("blank", " \n<|call|>"),
            ("cut off", "<|start|>"),
        )
    ),
    *(
        Case("harmony", f"a head of {head!r}", f"<|channel|>{head}<|message|>Hm.<|end|>{FINAL}Hi.", "Hi.", "Hm.")
        for head in ("??", "", "thought", "analysis analysis json", "commentary I think of", "<|constrain|>json")
    ),
    *(
        Case("harmony", f"a cut head {head!r}", f"<|channel|>analysis<|message|>Hm.<|end|>{head}", "", "Hm.")
        for head in (
            "<|start|>",
            "<|start|>assist",
            "<|start|>assistant<|channel|>fin",
            "<|channel|>commentary to=functio",
        )
    ),
    *(
        Case("harmony", f"a first head cut in {head!r}", head)
        for head in ("<|channel|>ana", "<|channel|>commentary to=functions.weather <|constrain|>js", " to=functions.w")
    ),
    *(
        Case(
            *("harmony", f"a thought that mentions {mention!r}"),
            f"<|channel|>analysis<|message|>Is {mention} it?<|end|>{FINAL}Hi.",
            *("Hi.", f"Is {mention} it?"),
        )
        for mention in ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|channel|> then a <|message|>")
    ),
    Case("harmony", "an object like a call", f"{FINAL}{WEATHER}<|return|>", WEATHER),
    Case("harmony", "a fenced object like a call", f"{FINAL}```json\n{WEATHER}\n```", f"```json\n{WEATHER}\n```"),
    Case("harmony", "an object like a call for the user", f"<|channel|>commentary<|message|>{WEATHER}", WEATHER),
    Case("harmony", "no head, and an end", "Hi there.<|end|>", "Hi there."),
    Case("harmony", "a head twice", f"<|start|>assistant{FINAL}Hi.", "Hi."),
    Case("harmony", "a thought that the prompt has begun", f"Hm.<|end|>{FINAL}Hi.", "Hi.", "Hm.", is_reasoning=True),
    Case(
        "harmony",
        "text, then two calls",
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>commentary to=functions.weather"
        f"{HARMONY_BODY}<|call|><|start|>assistant<|channel|>commentary to=functions.stop<|message|>{{}}<|call|>",
        "I look.",
        calls=(*TWO, ("stop", {})),
    ),
    Case(
        "harmony",
        "a type behind final",
        '<|channel|>final <|constrain|>json<|message|>{"a": 1}<|return|>',
        '{"a": 1}',
    ),
    # Muse
    Case("muse", "an answer", " to=user<|message|>Hi.<|eot|>", "Hi."),
    Case(
        "muse",
        "a call",
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=weather<|message|>"
        + muse('<atem:parameter name="days">2</atem:parameter>\n'),
        reasoning="Hm.",
        calls=TWO,
    ),
    Case(
        "muse",
        "a call for the user to read",
        " to=user<|message|>Write:\n" + muse("") + "<|eot|>",
        "Write:\n" + muse(""),
    ),
    # GLM
    Case("glm-4.5", "line breaks", glm(("days", "2")), calls=TWO),
    Case("glm-4.5", "no line breaks", glm(("days", "2")).replace("\n", ""), calls=TWO),
    Case("glm-4.7", "line breaks", glm(("city", "Rome")), calls=ROME),
    Case("glm-4.7", "no arguments", "<tool_call>stop</tool_call>", calls=(("stop", {}),)),
    Case(
        "glm-4.7",
        "markers in a text",
        glm(("city", "a </arg_value> <tool_call> b")),
        calls=(("weather", {"city": "a </arg_value> <tool_call> b"}),),
    ),
    Case("glm-4.7", "a call in the reasoning", "I look." + glm(("days", "2")), "", "I look.", TWO, is_reasoning=True),
    Case("glm-4.7", "reasoning, then a call", "I look.</think>" + glm(("days", "2")), "", "I look.", TWO, True),
    # DeepSeek
    Case(
        "deepseek-v3",
        "two calls behind text",
        "Hm.</think>I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>"
        '{"days": 2}<｜tool▁call▁end｜><｜tool▁call▁begin｜>stop<｜tool▁sep｜>{}<｜tool▁call▁end｜>'
        "<｜tool▁calls▁end｜>",
        "I look.",
        "Hm.",
        (*TWO, ("stop", {})),
        is_reasoning=True,
    ),
    Case(
        "deepseek-r1",
        "a fence without line breaks",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
        '{"days": 2}```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        calls=TWO,
    ),
    Case(
        "deepseek-v3.2",
        "text and JSON",
        "\n\n" + dsml("function_calls", ("city", True, "12"), ("days", False, "-14"), ("hours", False, "[1,2]")),
        calls=(("weather", {"city": "12", "days": -14, "hours": [1, 2]}),),
    ),
    Case(
        "deepseek-v4",
        "a call in the reasoning",
        "I look\n\n" + dsml("tool_calls", ("days", False, "2")),
        reasoning="I look",
        calls=TWO,
        is_reasoning=True,
    ),
    Case(
        "deepseek-v4.1",
        "a tool without arguments",
        'I look.\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="stop"/>\n</｜DSML｜ calls>',
        "I look.",
        calls=(("stop", {}),),
    ),
    # Kimi
    Case("kimi-k2", "two calls", "Hi." + kimi("weather", "stop"), "Hi.", calls=(*TWO, ("stop", {"days": 2}))),
    Case("kimi-k2", "no section", kimi("weather").split("begin|>", 1)[1].split("<|tool_calls")[0], calls=TWO),
    Case(
        "kimi-k2",
        "no section, no ends",
        kimi("weather", "stop").split("begin|>", 1)[1].replace("<|tool_call_end|>", "").split("<|tool_calls")[0],
        calls=(*TWO, ("stop", {"days": 2})),
    ),
    Case("kimi-k2", "a call in the reasoning", "<think>I look" + kimi("weather"), reasoning="I look", calls=TWO),
    Case(
        "kimi-k3",
        "an answer",
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>The response tag.<|close|>response<|sep|>"
        "<|close|>message<|sep|>",
        "The response tag.",
        "Hm.",
        is_reasoning=True,
    ),
    Case(
        "kimi-k3",
        "two calls",
        "<|open|>response<|sep|><|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="weather" index="1"<|sep|><|open|>argument key="days" type="number"<|sep|>2'
        '<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="stop" index="2"<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|><|close|>message<|sep|>",
        calls=(*TWO, ("stop", {})),
    ),
    # MiniMax
    Case(
        "minimax-m2",
        "no parameters",
        'I look.\n</think>\n\n<minimax:tool_call>\n<invoke name="stop">\n</invoke>\n</minimax:tool_call>',
        reasoning="I look.",
        calls=(("stop", {}),),
        is_reasoning=True,
    ),
    Case("minimax-m3", "a number", m3("~<days>2~</days>"), calls=TWO),
    Case("minimax-m3", "no parameters", m3(""), calls=(("weather", {}),)),
    Case(
        "minimax-m3",
        "objects and lists",
        m3(
            "~<place>~<lat>1.5~</lat>~<lon>-2~</lon>~</place>~<hours>~<item>1~</item>~<item>2~</item>~</hours>"
            "~<stations>~<item>~<id>7~</id>~</item>~</stations>"
        ),
        calls=(("weather", {"place": {"lat": 1.5, "lon": -2}, "hours": [1, 2], "stations": [{"id": "7"}]}),),
    ),
    Case("minimax-m3", "a union", m3("~<limit>~<max>10~</max>~</limit>"), calls=(("weather", {"limit": {"max": 10}}),)),
    Case(
        "minimax-m3",
        "text in an object that may be null",
        m3("~<point>~<name>12~</name>~</point>"),
        calls=(("weather", {"point": {"name": "12"}}),),
    ),
    Case(
        "minimax-m3",
        "an end in JSON",
        m3('~<limit>{"max": "a~</limit>"}~</limit>~<days>2~</days>'),
        calls=(("weather", {"limit": {"max": "a]<]minimax[>[</limit>"}, "days": 2}),),
    ),
    Case(
        "minimax-m3",
        "nothing in an object and in a list",
        m3("~<place>~</place>~<hours>~</hours>"),
        calls=(("weather", {"place": {}, "hours": []}),),
    ),
    Case(
        "minimax-m3",
        "elements in a text",
        m3("~<city>~<a>b~</a>~</city>"),
        calls=(("weather", {"city": "]<]minimax[>[<a>b]<]minimax[>[</a>"}),),
    ),
    # Gemma 4
    Case("gemma-4", "a text", '<|tool_call>call:weather{city:<|"|>Rome<|"|>}<tool_call|>', calls=ROME),
    Case("gemma-4", "no arguments", "<|tool_call>call:stop{}<tool_call|>", calls=(("stop", {}),)),
    Case(
        "gemma-4",
        "everything",
        '<|tool_call>call:weather{hours:[1,-2.5,1.5e10],is_metric:false,note:null,place:{lat:1,<|"|>lon<|"|>:2},'
        'city:<|"|>a}b{"c,d:e<|"|>}<tool_call|>',
        calls=(
            (
                "weather",
                {
                    "hours": [1, -2.5, 1.5e10],
                    "is_metric": False,
                    "note": None,
                    "place": {"lat": 1, "lon": 2},
                    "city": 'a}b{"c,d:e',
                },
            ),
        ),
    ),
    Case(
        "gemma-4",
        "empty values",
        "<|tool_call>call:weather{hours:[],place:{}}<tool_call|>",
        calls=(("weather", {"hours": [], "place": {}}),),
    ),
    Case("gemma-4", "reasoning", "<|channel>thought\nHm.\n<channel|>Hi.", "Hi.", "Hm."),
    Case("gemma-4", "no reasoning", "<|channel>thought<channel|>Hi.", "Hi."),
    Case("gemma-4", "an end too many", "<|channel>thought\n<channel|>Hi.<channel|>", "Hi."),
    Case("gemma-4", "empty reasoning at the end", "Hi.<|channel>thought\n<channel|><channel|>", "Hi."),
    Case("gemma-4", "a channel without a name", "<|channel><|channel>thought\n<channel|>Hi.", "Hi."),
    # Mistral
    Case(
        "mistral-nemo",
        "a list",
        '[TOOL_CALLS][{"name": "weather", "arguments": {"days": 2}, "id": "123456789"}]',
        calls=TWO,
    ),
    Case("mistral-nemo", "a space", '[TOOL_CALLS] [{"name": "weather", "arguments": {"days": 2}}]', calls=TWO),
    Case(
        "mistral-small",
        "two calls",
        '[TOOL_CALLS]weather[CALL_ID]00000000a[ARGS]{"days": 2}[TOOL_CALLS]stop[CALL_ID]00000000b[ARGS]{}',
        calls=(*TWO, ("stop", {})),
    ),
    Case(
        "ministral",
        "a call in the reasoning is none",
        '[THINK]I write [TOOL_CALLS]weather[ARGS]{"days": 1}.[/THINK][TOOL_CALLS]weather[ARGS]{"days": 2}',
        reasoning='I write [TOOL_CALLS]weather[ARGS]{"days": 1}.',
        calls=TWO,
    ),
    # Llama
    Case("llama-3", "bare", '{"name": "weather", "parameters": {"days": 2}}', calls=TWO),
    Case(
        "llama-3",
        "two",
        '{"name": "stop", "parameters": {}}; {"name": "stop", "parameters": {}}',
        calls=(("stop", {}),) * 2,
    ),
    Case("llama-3", "an answer in JSON", '{"name": "Ann", "age": 7}', '{"name": "Ann", "age": 7}'),
    Case("llama-3", "text", "Hi {there}.", "Hi {there}."),
    # Cohere
    Case(
        "command-r7b",
        "a list",
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_ACTION|>[\n    "
        '{"tool_call_id": "0", "tool_name": "weather", "parameters": {"days": 2}},\n    '
        '{"tool_call_id": "1", "tool_name": "stop", "parameters": {}}\n]<|END_ACTION|>',
        reasoning="Hm.",
        calls=(*TWO, ("stop", {})),
    ),
    Case("command-r7b", "text", "<|START_RESPONSE|>Hi.<|END_RESPONSE|>", "Hi."),
    Case(
        "cohere2-moe",
        "the prompt opens",
        "Hm.<|END_THINKING|><|START_TEXT|>Hi.<|END_TEXT|>",
        "Hi.",
        "Hm.",
        is_reasoning=True,
    ),
    Case(
        "command-r-plus",
        "a fence",
        'Action:\n```json\n[{"tool_name": "weather", "parameters": {"days": 2}}]\n```',
        calls=TWO,
    ),
    # lists of objects
    Case(
        "nemotron-nano-v2", "line breaks", f"Hm.\n</think>\n\n<TOOLCALL>[{WEATHER}]</TOOLCALL>\n", "", "Hm.", TWO, True
    ),
    Case("apriel", "the answer's own mark", "Hm.\n[BEGIN FINAL RESPONSE]\nHi.", "Hi.", "Hm.", is_reasoning=True),
    Case(
        "apriel", "a call", f"Hm.\n[BEGIN FINAL RESPONSE]\n<tool_calls>[{WEATHER}]</tool_calls>", "", "Hm.", TWO, True
    ),
    Case("granite-3", "a list", f"<|tool_call|>[{WEATHER}]", calls=TWO),
    Case("firefunction", "talk of functools", " Import functools first.", " Import functools first."),
    Case("minimax-m1", "lines", f"<tool_calls>\n{WEATHER}\n{WEATHER}\n</tool_calls>", calls=TWO * 2),
    Case("apertus", "the name is the key", '<|tools_prefix|>[{"weather": {"days": 2}}]<|tools_suffix|>', calls=TWO),
    # Functionary
    Case("functionary-v3.1", "a call", '<function=weather>{"days": 2}</function>', calls=TWO),
    Case("functionary-v3.2", "text", "all\nHi.", "Hi."),
    Case("functionary-v3.2", "text and a call", 'all\nHi.\n>>>weather\n{"days": 2}', "Hi.", calls=TWO),
    Case("functionary-v3.2", "Python's prompt", "all\n>>> weather\n{}", ">>> weather\n{}"),
    # LFM2
    Case("lfm2", "a text", '<|tool_call_start|>[weather(city="Rome")]<|tool_call_end|>', calls=ROME),
    Case("lfm2", "two", "<|tool_call_start|>[weather(days=2), stop()]<|tool_call_end|>", calls=(*TWO, ("stop", {}))),
    Case(
        "lfm2",
        "Python's and JSON's words",
        "<|tool_call_start|>[weather(is_metric=True, note=None, place={'a': false, \"b\": null})]<|tool_call_end|>",
        calls=(("weather", {"is_metric": True, "note": None, "place": {"a": False, "b": None}}),),
    ),
    Case(
        "lfm2",
        "a name with a dot",
        '<|tool_call_start|>[Office.plan(who=["Ann", "Bo"])]<|tool_call_end|>',
        calls=(("Office.plan", {"who": ["Ann", "Bo"]}),),
    ),
    Case(
        "lfm2",
        "escapes",
        r"""<|tool_call_start|>[save(text="a\n\t\"b\" 'c' \u00e9 \d")]<|tool_call_end|>""",
        calls=(("save", {"text": "a\n\t\"b\" 'c' é \\d"}),),
    ),
    Case(
        "lfm2",
        "quotes that are not escaped",
        "<|tool_call_start|>[save(text='print('it's'), x', path='a')]<|tool_call_end|>",
        calls=(("save", {"text": "print('it's'), x", "path": "a"}),),
    ),
    Case("lfm2", "links", "A link is [text](url).", "A link is [text](url)."),
    Case(
        "lfm2",
        "a call in the reasoning is none",
        "<think>So <|tool_call_start|>[stop()]<|tool_call_end|>?</think><|tool_call_start|>[stop()]<|tool_call_end|>",
        reasoning="So <|tool_call_start|>[stop()]<|tool_call_end|>?",
        calls=(("stop", {}),),
    ),
    # MiniCPM, Hunyuan, Solar, GigaChat
    Case(
        "minicpm-5",
        "CDATA",
        '<function name="save"><param name="text"><![CDATA[<a> </param>]]></param>'
        '<param name="path">x</param></function>',
        calls=(("save", {"text": "<a> </param>", "path": "x"}),),
    ),
    Case(
        "hunyuan",
        "a call",
        "<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
        calls=TWO,
    ),
    Case(
        "solar-open",
        "reasoning and a call",
        "<|think|>Hm.<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1<|tool_call:name|>weather"
        '<|tool_call:args|>{"days": 2}<|tool_call:end|><|calls|>',
        reasoning="Hm.",
        calls=TWO,
    ),
    Case("solar-open", "text", "<|content|>Hi.<|end|>", "Hi."),
    Case("gigachat-3.1", "text and a call", f"Hi.<|function_call|>{WEATHER}", "Hi.", calls=TWO),
    Case(
        "gigachat-3", "text and a call", f"Hi.<|message_sep|>\n\nfunction call<|role_sep|>\n{WEATHER}", "Hi.", calls=TWO
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.family}: {case.what}")
@pytest.mark.parametrize("size", [1, 4, 10_000])
def test_a_family_is_read_with_its_traps(case: Case, size: int) -> None:
    pieces = [case.text[i : i + size] for i in range(0, len(case.text), size)]
    message = message_of(read(FORMATS[case.family], TOOLS, pieces, is_reasoning=case.is_reasoning))
    calls = [(one.name, json.loads(one.arguments)) for one in message.calls]
    assert (message.content, message.reasoning, calls) == (case.content, case.reasoning, list(case.calls))


def test_every_family_has_a_trap() -> None:
    assert {case.family for case in CASES} >= FORMATS.keys() - {"generic", "smollm3"}


@pytest.mark.parametrize(
    ("family", "text", "ids"),
    [
        ("kimi-k2", kimi("weather", "stop"), ["functions.weather:0", "functions.stop:1"]),
        ("mistral-small", "[TOOL_CALLS]stop[CALL_ID]00000000a[ARGS]{}", ["00000000a"]),
        ("solar-open", "<|tool_call:begin|>a1<|tool_call:name|>stop<|tool_call:args|>{}<|tool_call:end|>", ["a1"]),
        ("hermes", f"<tool_call>{WEATHER}</tool_call>" * 2, ["id-0", "id-1"]),
    ],
)
def test_a_models_own_id_is_kept(family: str, text: str, ids: list[str]) -> None:
    assert [call.id for call in message_of(read(FORMATS[family], TOOLS, [text])).calls] == ids


def test_two_calls_with_one_id_get_two() -> None:
    text = kimi("weather") * 2
    assert [call.id for call in message_of(read(FORMATS["kimi-k2"], TOOLS, [text])).calls] == [
        "functions.weather:0",
        an_id(1),
    ]


@pytest.mark.parametrize("family", ["hermes", "qwen3", "generic"])
def test_arguments_that_break_are_given_out_up_to_the_calls_end(family: str) -> None:
    """The client sees what the model wrote, and no marker."""
    text = '<tool_call>\n{"name": "weather", "arguments": {"days": [1}, 2}\n</tool_call>\nDone.'
    message = message_of(read(FORMATS[family], TOOLS, list(text)))
    assert message == Message("\nDone.", "", (Call("id-0", "weather", '{"days": [1}, 2}\n'),))


def test_arguments_that_json_allows_are_passed_on_unchanged() -> None:
    arguments = '{ "days" :2,\n"city":"a\\u00e9é" ,"hours":[1e5,-0.0]}'
    text = f'<tool_call>{{"name": "weather", "arguments": {arguments} }}</tool_call>'
    assert message_of(read(FORMATS["hermes"], TOOLS, list(text))).calls[0].arguments == arguments


def test_without_tools_no_call_is_read_and_nothing_is_held_back() -> None:
    text = f"Hi. <tool_call>\n{WEATHER}\n</tool_call> "
    deltas = read(FORMATS["hermes"], {}, list(text))
    assert message_of(deltas) == Message(text, "", ())
    assert len(deltas) == len(text)
