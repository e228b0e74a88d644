"""The families of models whose notation is declared.

Owns the notations of known families as data, and the marks in a template's source by which each is recognised. The
first family that fits counts. Pure data.
"""

from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from worker.wire.chat_format import CallFormat, ChatFormat, ReasoningFormat


@dataclass(frozen=True, slots=True)
class Family:
    """A notation, and the texts that a template of this family contains."""

    marks: tuple[str, ...]
    """All of these are in the source."""
    format: ChatFormat
    without: tuple[str, ...] = ()
    """None of these is in the source."""


_THINK: Final = ReasoningFormat(begin="<think>", end="</think>")
_THINK_LINES: Final = ReasoningFormat(begin="<think>\n", end="\n</think>\n\n")
_THINK_CALLS: Final = ReasoningFormat(begin="<think>", end="</think>", is_ended_by_call=True)
_HERMES_CALLS: Final = CallFormat(form="object", call_begin="<tool_call>\n", call_end="\n</tool_call>", between="\n")
_CODER_CALLS: Final = CallFormat(
    form="tagged",
    call_begin="<tool_call>\n<function=",
    call_end="</function>\n</tool_call>",
    between="\n",
    skippable=("<tool_call>\n",),
    name_end=">\n",
    parameter_begin="<parameter=",
    parameter_name_end=">\n",
    parameter_end="\n</parameter>\n",
)
_GLM_CALLS: Final = CallFormat(
    form="tagged",
    call_begin="<tool_call>",
    call_end="</tool_call>",
    between="\n",
    name_end="\n",
    parameter_begin="<arg_key>",
    parameter_name_end="</arg_key>\n<arg_value>",
    parameter_end="</arg_value>\n",
)
_GLM_SHORT_CALLS: Final = replace(
    _GLM_CALLS, between="", name_end="", parameter_name_end="</arg_key><arg_value>", parameter_end="</arg_value>"
)
_MISTRAL_THINK: Final = ReasoningFormat(begin="[THINK]", end="[/THINK]")
_MISTRAL_CALLS: Final = CallFormat(form="named", call_begin="[TOOL_CALLS]", name_end="[ARGS]")
_DEEPSEEK_CALLS: Final = CallFormat(
    form="named",
    section_begin="<｜tool▁calls▁begin｜>",
    section_end="<｜tool▁calls▁end｜>",
    call_begin="<｜tool▁call▁begin｜>",
    call_end="<｜tool▁call▁end｜>",
    name_end="<｜tool▁sep｜>",
)
_DEEPSEEK_FENCED_CALLS: Final = replace(
    _DEEPSEEK_CALLS,
    call_begin="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    call_end="\n```<｜tool▁call▁end｜>",
    between="\n",
    name_end="\n```json\n",
)


def _dsml(name: str, section: str, space: str = "") -> Family:
    sections = ("function_calls", "tool_calls", " calls")
    calls = CallFormat(
        form="tagged",
        section_begin=f"<｜DSML｜{section}>\n",
        section_end=f"</｜DSML｜{section}>",
        call_begin=f'<｜DSML｜{space}invoke name="',
        call_end=f"</｜DSML｜{space}invoke>\n",
        name_end='">\n',
        parameter_begin=f'<｜DSML｜{space}parameter name="',
        parameter_name_end='" string="',
        parameter_end=f"</｜DSML｜{space}parameter>\n",
        values="is_string",
        mark_end='">',
    )
    # A model may write the section of another version.
    hidden = tuple(f"<{end}｜DSML｜{other}>" for other in sections if other != section for end in ("", "/"))
    return Family(("DSML", f"{section}>"), _format(name, calls, _THINK_CALLS, hidden))


def _cohere(name: str, content: str) -> ChatFormat:
    return ChatFormat(
        name=name,
        source="declared",
        calls=CallFormat(
            form="object",
            section_begin="<|START_ACTION|>[\n    ",
            section_end="\n]<|END_ACTION|>",
            between=",\n    ",
            name_key="tool_name",
            arguments_key="parameters",
            id_key="tool_call_id",
        ),
        reasoning=ReasoningFormat(begin="<|START_THINKING|>", end="<|END_THINKING|>"),
        content_begin=f"<|START_{content}|>",
        content_end=f"<|END_{content}|>",
        hidden=("<|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
    )


def _format(
    name: str, calls: CallFormat, reasoning: ReasoningFormat | None = None, hidden: tuple[str, ...] = ()
) -> ChatFormat:
    return ChatFormat(name=name, source="declared", calls=calls, reasoning=reasoning, hidden=hidden)


FAMILIES: Final[tuple[Family, ...]] = (
    Family(
        ("<|channel|>", "<|message|>", "functions."),
        ChatFormat(
            name="harmony",
            source="declared",
            calls=CallFormat(
                form="harmony",
                call_begin="<|channel|>commentary to=functions.",
                call_end="<|call|>",
                between="<|start|>assistant",
                name_end=" <|constrain|>json<|message|>",
                name_prefix="functions.",
            ),
            reasoning=ReasoningFormat(begin="<|channel|>analysis<|message|>", end="<|end|>"),
            opening="<|start|>assistant",
            content_begin="<|channel|>final<|message|>",
            hidden=("<|return|>",),
        ),
    ),
    Family(
        ("atem:function_calls", "<|message|>"),
        ChatFormat(
            name="muse",
            source="declared",
            calls=CallFormat(
                form="harmony",
                section_begin="<atem:function_calls>\n",
                section_end="</atem:function_calls>",
                call_begin='<atem:invoke name="',
                call_end="</atem:invoke>\n",
                name_end='">\n',
                parameter_begin='<atem:parameter name="',
                parameter_name_end='">',
                parameter_end="</atem:parameter>\n",
                reserved=("self", "user", "assistant"),
            ),
            reasoning=ReasoningFormat(begin=" to=self<|message|>", end="<|eom|>"),
            opening="<|start|>assistant",
            content_begin=" to=user<|message|>",
            content_end="<|eot|>",
        ),
    ),
    _dsml("deepseek-v3.2", "function_calls"),
    _dsml("deepseek-v4", "tool_calls"),
    _dsml("deepseek-v4.1", " calls", " "),
    Family(
        ("<｜tool▁calls▁begin｜>", "```json"),
        _format("deepseek-r1", _DEEPSEEK_FENCED_CALLS, _THINK_CALLS),
    ),
    Family(("<｜tool▁calls▁begin｜>",), _format("deepseek-v3", _DEEPSEEK_CALLS, _THINK_CALLS)),
    Family(
        ("<|tool_calls_section_begin|>",),
        _format(
            "kimi-k2",
            CallFormat(
                form="named",
                section_begin="<|tool_calls_section_begin|>",
                section_end="<|tool_calls_section_end|>",
                call_begin="<|tool_call_begin|>",
                call_end="<|tool_call_end|>",
                name_end="<|tool_call_argument_begin|>",
                name_prefix="functions.",
                index_begin=":",
                is_whole_id=True,
            ),
            _THINK_CALLS,
        ),
    ),
    Family(
        ("<|open|>", "<|sep|>", "xtml"),
        ChatFormat(
            name="kimi-k3",
            source="declared",
            calls=CallFormat(
                form="tagged",
                section_begin="<|open|>tools<|sep|>",
                section_end="<|close|>tools<|sep|>",
                call_begin='<|open|>call tool="',
                call_end="<|close|>call<|sep|>",
                index_begin='" index="',
                first_index=1,
                name_end='"<|sep|>',
                parameter_begin='<|open|>argument key="',
                parameter_name_end='" type="',
                parameter_end="<|close|>argument<|sep|>",
                values="type",
                mark_end='"<|sep|>',
            ),
            reasoning=ReasoningFormat(begin="<|open|>think<|sep|>", end="<|close|>think<|sep|>"),
            content_begin="<|open|>response<|sep|>",
            content_end="<|close|>response<|sep|>",
            hidden=("<|close|>message<|sep|>", "<|end_of_msg|>"),
        ),
    ),
    Family(
        ("]<]minimax[>[",),
        _format(
            "minimax-m3",
            CallFormat(
                form="nested",
                section_begin="]<]minimax[>[<tool_call>\n",
                section_end="]<]minimax[>[</tool_call>",
                call_begin=']<]minimax[>[<invoke name="',
                call_end="]<]minimax[>[</invoke>\n",
                name_end='">',
                parameter_begin="]<]minimax[>[<",
                parameter_name_end=">",
                parameter_end="]<]minimax[>[</",
            ),
            ReasoningFormat(begin="<mm:think>", end="</mm:think>"),
        ),
    ),
    Family(
        ("<minimax:tool_call>",),
        _format(
            "minimax-m2",
            CallFormat(
                form="tagged",
                section_begin="<minimax:tool_call>\n",
                section_end="</minimax:tool_call>",
                call_begin='<invoke name="',
                call_end="</invoke>\n",
                name_end='">\n',
                parameter_begin='<parameter name="',
                parameter_name_end='">',
                parameter_end="</parameter>\n",
            ),
            _THINK_LINES,
        ),
    ),
    Family(
        ("<beginning_of_sentence>", "<tool_calls>"),
        _format(
            "minimax-m1",
            CallFormat(form="object", section_begin="<tool_calls>\n", section_end="\n</tool_calls>", between="\n"),
            _THINK,
        ),
    ),
    Family(
        ("<|tool_call>call:",),
        _format(
            "gemma-4",
            CallFormat(form="gemma", call_begin="<|tool_call>call:", call_end="<tool_call|>"),
            ReasoningFormat(begin="<|channel>thought\n", end="<channel|>"),
            ("<|channel>",),
        ),
    ),
    Family(
        ("[TOOL_CALLS]", "[CALL_ID]"),
        _format("mistral-small", replace(_MISTRAL_CALLS, id_begin="[CALL_ID]"), _MISTRAL_THINK),
    ),
    Family(("[TOOL_CALLS]", "[ARGS]"), _format("ministral", _MISTRAL_CALLS, _MISTRAL_THINK)),
    Family(
        ("[TOOL_CALLS]",),
        _format(
            "mistral-nemo",
            CallFormat(form="object", section_begin="[TOOL_CALLS][", section_end="]", between=", ", id_key="id"),
        ),
    ),
    Family(
        (">>>${recipient}",),
        ChatFormat(
            name="functionary-v3.2",
            source="declared",
            calls=CallFormat(form="named", call_begin=">>>", name_end="\n", is_begun=True, reserved=("all",)),
            opening=">>>",
            content_begin=">>>all\n",
        ),
    ),
    Family(
        ("<{start_tag}={function_name}>",),
        _format(
            "functionary-v3.1",
            CallFormat(form="named", call_begin="<function=", call_end="</function>", name_end=">"),
        ),
    ),
    Family(
        (" functools[",),
        _format(
            "firefunction",
            CallFormat(form="object", section_begin=" functools[", section_end="]", between=", "),
        ),
    ),
    Family(("<|START_ACTION|>", "<|START_TEXT|>"), _cohere("cohere2-moe", "TEXT")),
    Family(("<|START_ACTION|>", "<|START_RESPONSE|>"), _cohere("command-r7b", "RESPONSE")),
    Family(
        ("Action:", "```json", "tool_name", "directly-answer"),
        _format(
            "command-r-plus",
            CallFormat(
                form="object",
                section_begin="Action:\n```json\n[\n",
                section_end="\n]\n```",
                between=",\n",
                name_key="tool_name",
                arguments_key="parameters",
            ),
        ),
    ),
    Family(
        ("<TOOLCALL>",),
        _format(
            "nemotron-nano-v2",
            CallFormat(form="object", section_begin="<TOOLCALL>[", section_end="]</TOOLCALL>", between=", "),
            _THINK_LINES,
        ),
    ),
    Family(
        ("<tool_calls>[", "[BEGIN FINAL RESPONSE]"),
        _format(
            "apriel",
            CallFormat(form="object", section_begin="<tool_calls>[", section_end="]</tool_calls>", between=", "),
            ReasoningFormat(begin="Here are my reasoning steps:\n", end="\n[BEGIN FINAL RESPONSE]\n"),
        ),
    ),
    Family(
        ("<seed:tool_call>",),
        _format(
            "seed-oss",
            replace(
                _CODER_CALLS,
                call_begin="<seed:tool_call>\n<function=",
                call_end="</function>\n</seed:tool_call>",
                skippable=("<seed:tool_call>\n",),
                parameter_name_end=">",
                parameter_end="</parameter>\n",
            ),
            ReasoningFormat(begin="<seed:think>", end="</seed:think>\n"),
        ),
    ),
    Family(
        ("List of tools: ", "<|im_start|>"),
        _format(
            "lfm2",
            CallFormat(
                form="python",
                section_begin="<|tool_call_start|>[",
                section_end="]<|tool_call_end|>",
                between=", ",
            ),
            _THINK,
        ),
    ),
    Family(
        ("<tool_calls{}>", "<arg_key{}>"),
        _format(
            "hunyuan",
            CallFormat(
                form="tagged",
                section_begin="<tool_calls:opensource>\n",
                section_end="</tool_calls:opensource>",
                call_begin="<tool_call:opensource>",
                call_end="</tool_call:opensource>\n",
                name_end="<tool_sep:opensource>\n",
                parameter_begin="<arg_key:opensource>",
                parameter_name_end="</arg_key:opensource>\n<arg_value:opensource>",
                parameter_end="</arg_value:opensource>\n",
            ),
            ReasoningFormat(begin="<think:opensource>", end="</think:opensource>"),
        ),
    ),
    Family(("<arg_key>", "</arg_key>\n"), _format("glm-4.5", _GLM_CALLS, _THINK_CALLS)),
    Family(("<arg_key>", "<arg_value>"), _format("glm-4.7", _GLM_SHORT_CALLS, _THINK_CALLS)),
    Family(
        ("<function name=", "<param name="),
        _format(
            "minicpm-5",
            CallFormat(
                form="tagged",
                call_begin='<function name="',
                call_end="</function>",
                between="\n",
                name_end='">',
                parameter_begin='<param name="',
                parameter_name_end='">',
                parameter_end="</param>",
            ),
            _THINK_LINES,
        ),
    ),
    Family(
        ("<function=", "<parameter=", "</think>"),
        _format("qwen3.5", _CODER_CALLS, replace(_THINK_LINES, is_ended_by_call=True)),
    ),
    Family(("<function=", "<parameter="), _format("qwen3-coder", _CODER_CALLS)),
    Family(
        ("<|tool_call:begin|>",),
        ChatFormat(
            name="solar-open",
            source="declared",
            calls=CallFormat(
                form="named",
                section_begin="<|tool_calls|>",
                section_end="<|calls|>",
                call_begin="<|tool_call:begin|>",
                call_end="<|tool_call:end|>",
                id_end="<|tool_call:name|>",
                name_end="<|tool_call:args|>",
            ),
            reasoning=ReasoningFormat(begin="<|think|>", end="<|end|>"),
            content_begin="<|content|>",
            content_end="<|end|>",
            hidden=("<|begin|>assistant",),
        ),
    ),
    Family(
        ("<|function_call|>",),
        _format("gigachat-3.1", CallFormat(form="object", call_begin="<|function_call|>")),
    ),
    Family(
        ("function call", "<|role_sep|>"),
        _format(
            "gigachat-3",
            CallFormat(form="object", call_begin="<|message_sep|>\n\nfunction call<|role_sep|>\n"),
        ),
    ),
    Family(
        ("<|tools_prefix|>",),
        _format(
            "apertus",
            CallFormat(
                form="object",
                section_begin="<|tools_prefix|>[",
                section_end="]<|tools_suffix|>",
                between=", ",
                name_key="",
            ),
            ReasoningFormat(begin="<|inner_prefix|>", end="<|inner_suffix|>"),
        ),
    ),
    Family(
        ("<|tool_call|>", "Granite"),
        _format(
            "granite-3",
            CallFormat(form="object", section_begin="<|tool_call|>[", section_end="]", between=", "),
            _THINK,
        ),
        without=("<tool_call>",),
    ),
    Family(
        ("named SmolLM", "<think>"),
        _format("smollm3", _HERMES_CALLS, _THINK_LINES),
    ),
    Family(
        ('{"name": "', '"parameters": ', "<|start_header_id|>"),
        _format(
            "llama-3",
            CallFormat(form="object", arguments_key="parameters", between="; "),
            hidden=("<|python_tag|>",),
        ),
        without=("<tool_call>",),
    ),
    Family(("<tool_call>", "</think>"), _format("qwen3", _HERMES_CALLS, _THINK_LINES)),
    Family(("<tool_call>",), _format("hermes", _HERMES_CALLS)),
)


def declared(source: str) -> ChatFormat | None:
    """Return the notation of the family that a template's source is of, or None if it is of no known family."""
    for family in FAMILIES:
        if all(mark in source for mark in family.marks) and not any(mark in source for mark in family.without):
            return family.format
    return None
