"""The tools of a conversation as a text, for templates that have no place for tools.

Owns: the words that describe the tools and the form of a call, which is that of Hermes and Qwen models: forms.py writes
the calls of earlier turns in the same form, and answers are read in it. Pure; knows no template.
"""

import json

from worker.chat.forms import Message
from worker.chat.marks import Json

_BEFORE = """# Tools

You may call these functions. Each line between <tools> and </tools> is the JSON signature of one:
<tools>
"""
_AFTER = """
</tools>

To call a function, write a JSON object with its name and its arguments between <tool_call> and </tool_call>:
<tool_call>
{"name": <name of the function>, "arguments": <object with the arguments>}
</tool_call>"""
_BETWEEN = "\n\n"


def with_tools(messages: list[Message], tools: list[Json]) -> list[Message]:
    """The messages with the tools at the end of the first system message, which is made if there is none."""
    words = _BEFORE + "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools) + _AFTER
    if messages and messages[0].get("role") == "system" and isinstance(said := messages[0].get("content"), str):
        return [{**messages[0], "content": said + _BETWEEN + words if said else words}, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]
