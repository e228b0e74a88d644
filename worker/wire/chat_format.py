"""The notation of a model's reasoning and calls, as data, of which the grammar of a call and the reader of answers are
made. The engine finds it in the chat template (formats/tool_format.py).

All markers are texts, exactly as the template writes them; a control token stands in a text by its name. The reader
takes any white space at the ends of a marker and at its line breaks, except around a tagged argument's text.
"""

from typing import Literal

import msgspec

CallForm = Literal["object", "named", "tagged", "nested", "harmony", "python", "gemma"]
"""The notation of one call:

- `object`: a JSON object with a member for the name and one for the arguments (Hermes, Qwen, Llama 3, Mistral Nemo).
- `named`: the name as text, then the arguments as a JSON object (DeepSeek V3, Kimi K2, Mistral Small).
- `tagged`: the name as text, then each argument between markers of its own (Qwen3-Coder, GLM, MiniMax, DeepSeek V3.2).
- `nested`: as `tagged`, but the argument's name is its marker, and objects and lists are markers again (MiniMax M3).
- `harmony`: messages with headers; the header has the recipient, the body is a JSON object (gpt-oss), or a call in the
  `tagged` form (Muse) if `parameter_begin` is not empty.
- `python`: a list of Python calls with keyword arguments (LFM2).
- `gemma`: Gemma 4's own notation.
"""

ValueForm = Literal["schema", "is_string", "type"]
"""The way to know whether a tagged argument's value is text or JSON: `schema`: text if the tool's schema says string,
else JSON if it can be read as JSON; `is_string`: an attribute is `true` for text, `false` for JSON; `type`: an
attribute names the type of the value (`string`, `number`, …)."""

Source = Literal["template", "declared", "generic"]
"""The origin of a format: derived from the template, declared for the family of the template, or the fallback for a
template that does not say (Hermes' form, in which the worker also renders such calls)."""


class CallFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The notation of the calls in one answer:
    `section_begin (call_begin NAME name_end ARGUMENTS call_end) between ... section_end`."""

    form: CallForm
    section_begin: str = ""
    section_end: str = ""
    """The markers around all calls. Models leave them out; the reader does not need them."""
    call_begin: str = ""
    call_end: str = ""
    between: str = ""
    """The text between two calls."""
    is_begun: bool = False
    """True if the prompt ends in the first call's call_begin (Functionary's `>>>`)."""
    reserved: tuple[str, ...] = ()
    """The names that stand for other receivers than tools (Functionary's `all`). A tool with such a name cannot be
    called."""
    skippable: tuple[str, ...] = ()
    """Beginnings of call_begin that models leave out; its rest begins a call, too (Qwen3-Coder's `<tool_call>`)."""
    name_key: str = "name"
    """The member of an `object` that has the name; empty if the arguments are the member whose key is the name."""
    arguments_key: str = "arguments"
    id_key: str = ""
    """The member of an `object` that has the call's id; empty if there is none. Such an id is not kept, because it may
    come after the arguments, and because it is only unique in its answer."""
    name_end: str = ""
    """The text between the name and the arguments of `named` and `tagged` calls."""
    id_begin: str = ""
    """The text before an id that stands between name and name_end ([CALL_ID]); empty if there is none."""
    id_end: str = ""
    """The text after an id that stands between call_begin and the name; empty if there is none."""
    name_prefix: str = ""
    """The text before each name that is not part of it (`functions.`)."""
    index_begin: str = ""
    """The text between the name and the number of the call; empty if calls have no number."""
    first_index: int = 0
    is_whole_id: bool = False
    """True if prefix, name and number together are the call's id (Kimi K2)."""
    parameter_begin: str = ""
    parameter_name_end: str = ""
    parameter_end: str = ""
    """The texts before a tagged argument's name, between its name and its value, and after its value. A line break at
    the end of parameter_name_end and at the beginning of parameter_end is not part of the value."""
    values: ValueForm = "schema"
    mark_end: str = ""
    """The text between a value's attribute and the value, if `values` is not `schema`."""


class ReasoningFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The markers around a model's reasoning."""

    begin: str
    end: str
    is_ended_by_call: bool = False
    """True if a call inside the reasoning ends it: the model leaves out the end marker."""


class ChatFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The notation of one model's answers."""

    name: str = ""
    """The family, for people: `hermes`, `harmony`, `qwen3-coder`."""
    source: Source = "generic"
    calls: CallFormat | None = None
    """None if the model has no form for calls."""
    reasoning: ReasoningFormat | None = None
    opening: str = ""
    """The end of the prompt that belongs to the answer (Functionary's `>>>`)."""
    content_begin: str = ""
    content_end: str = ""
    """The markers around the answer's text, which are not part of it."""
    hidden: tuple[str, ...] = ()
    """Further markers that are never content."""

    @property
    def title(self) -> str:
        """The family and the origin of the format, for people: `hermes (template)`."""
        return f"{self.name} ({self.source})"

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts of the format. A control token in one of them stays in the text: the parser needs it."""
        parts: list[object] = [self.opening, self.content_begin, self.content_end, *self.hidden]
        if self.reasoning is not None:
            parts += [self.reasoning.begin, self.reasoning.end]
        if self.calls is not None:
            parts += msgspec.structs.astuple(self.calls)
            parts += [GEMMA_QUOTE] if self.calls.form == "gemma" else []
        return tuple(part for part in parts if isinstance(part, str) and part)

    def opens_reasoning(self, prompt: str) -> bool:
        """True if an answer to the prompt begins inside the reasoning."""
        return self.reasoning is not None and prompt.rstrip().endswith(self.reasoning.begin.strip())


GEMMA_QUOTE = '<|"|>'
"""The token around texts in Gemma 4's notation."""

HERMES = ChatFormat(
    name="hermes",
    calls=CallFormat(form="object", call_begin="<tool_call>\n", call_end="\n</tool_call>", between="\n"),
)
"""The form of Hermes and Qwen models, and of every model whose template does not say."""
