"""Deltas as a reader of answers makes them, for the tests of every protocol's events."""

from collections.abc import Sequence

from hypothesis import strategies as st

from worker.chat.parse import Arguments, CallBegun, Content, Delta, Thought
from worker.openai.tools import ToolUse, custom_tool, function_tool
from worker.protocol.bodies import FieldError

_ERRORS: list[FieldError] = []
TOOLS = (
    function_tool("", _ERRORS, name="read", description="", schema={}, schema_field="parameters"),
    function_tool("", _ERRORS, name="find", description="", schema={}, schema_field="parameters", namespace="files"),
    custom_tool("", _ERRORS, name="patch", description=""),
)
USE = ToolUse(tools=TOOLS)
NAMES = tuple(tool.name for tool in TOOLS)
assert not _ERRORS

TEXTS = st.text(alphabet=st.sampled_from(["a", "é", "\n", " ", "🙂", '"', "\\", "<", "x"]), min_size=1, max_size=6)
"""Pieces of text, never empty."""


@st.composite
def sequences(draw: st.DrawFn) -> list[Delta]:
    """The deltas of one answer."""
    found: list[Delta] = []
    n_calls = 0
    for _ in range(draw(st.integers(0, 8))):
        match draw(st.sampled_from(["content", "thought", "call"])):
            case "content":
                found.append(Content(draw(TEXTS)))
            case "thought":
                found.append(Thought(draw(TEXTS)))
            case _:
                found.append(CallBegun(n_calls, f"id{n_calls}", draw(st.sampled_from(NAMES))))
                found += [Arguments(n_calls, text) for text in draw(st.lists(TEXTS, max_size=4))]
                n_calls += 1
    return found


def said(deltas: Sequence[Delta], kind: type[Content] | type[Thought]) -> str:
    """All text of one kind, without white space: blank texts may be left out, and nothing else may."""
    return "".join("".join(delta.text.split()) for delta in deltas if isinstance(delta, kind))
