"""How a model writes its reasoning and its calls, as data.

The engine finds this format in the chat template (chat/tool_format.py), and the front reads answers by it
(chat/parse.py). The same data makes the grammar of a call (chat/tool_grammar.py), so what a grammar allows is what the
reader reads. All markers are texts; a control token stands in a text by its name.
"""

from typing import Literal

import msgspec

CallForm = Literal["object", "named", "tagged", "harmony", "python", "gemma"]
"""The notation of one call:

- `object`: a JSON object with a member for the name and one for the arguments (Hermes, Qwen, Llama 3, Mistral Nemo).
- `named`: the name as text, then the arguments as a JSON object (DeepSeek V3, Kimi K2, Mistral Small).
- `tagged`: the name as text, then each argument between markers of its own (Qwen3-Coder, GLM, MiniMax, DeepSeek V3.2).
- `harmony`: the name in the header of a channel, then a JSON object (gpt-oss).
- `python`: a list of Python calls with keyword arguments (LFM2).
- `gemma`: Gemma 4's own notation.
"""

ValueForm = Literal["schema", "json", "marked"]
"""The notation of a tagged argument's value: `schema`: text if the tool's schema says string, else JSON; `json`: JSON
if it can be read as JSON, else text; `marked`: an attribute of the marker says which of the two."""

Source = Literal["template", "declared", "generic"]
"""Where a format is from: derived from the template, declared for the family of the template, or the fallback for a
template that does not say (Hermes' form, in which the worker also renders such calls)."""


class CallFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The notation of the calls in one answer:
    `section_begin (call_begin NAME name_end ARGUMENTS call_end) between ... section_end`."""

    form: CallForm
    section_begin: str = ""
    section_end: str = ""
    call_begin: str = ""
    call_end: str = ""
    between: str = ""
    """The text between two calls."""
    skippable: tuple[str, ...] = ()
    """Beginnings that models leave out; the rest of the call begins a call, too (Qwen3-Coder's `<tool_call>`)."""
    name_key: str = "name"
    arguments_key: str = "arguments"
    id_key: str = ""
    """The member of an `object` that has the call's id; empty if there is none."""
    name_end: str = ""
    """The text between the name and the arguments of `named` and `tagged` calls."""
    id_begin: str = ""
    """The text before an id that stands between name and name_end ([CALL_ID]); empty if there is none."""
    name_prefix: str = ""
    """The text before each name that is not part of it (`functions.`)."""
    is_name_indexed: bool = False
    """True if `:` and a number follow each name (Kimi K2), and the whole is the call's id."""
    parameter_begin: str = ""
    parameter_name_end: str = ""
    parameter_end: str = ""
    """The texts before a tagged argument's name, between its name and its value, and after its value."""
    values: ValueForm = "schema"


class ReasoningFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The markers around a model's reasoning."""

    begin: str
    end: str


class ChatFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The notation of one model's answers."""

    name: str = ""
    """The family, for people: `hermes`, `harmony`, `qwen3-coder`."""
    source: Source = "generic"
    calls: CallFormat | None = None
    """None if the model has no form for calls."""
    reasoning: ReasoningFormat | None = None
    content_begin: str = ""
    content_end: str = ""
    """The markers around the answer's text, which are not part of it."""
    hidden: tuple[str, ...] = ()
    """Further markers that are never content."""


HERMES = ChatFormat(
    name="hermes",
    calls=CallFormat(
        form="object", call_begin="<tool_call>\n", call_end="\n</tool_call>", between="\n", arguments_key="arguments"
    ),
)
"""The form of Hermes and Qwen models, and of every model whose template does not say."""
