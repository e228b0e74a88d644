"""Wrong requests of `/v1/messages`: what is changed in a right one, and the field that the refusal names."""

from typing import Any

from tests.openai.responses.wrong import deep

USER = {"role": "user", "content": "Hello"}
RIGHT: dict[str, Any] = {"model": "any", "max_tokens": 4, "messages": [USER]}
TOOL = {"name": "read", "input_schema": {"type": "object", "properties": {}}}
CALL = {"type": "tool_use", "id": "c", "name": "read", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "text"}
ABSENT = object()
"""The value of a field that is left out."""


def _block(role: str = "user", **members: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": [members]}, USER]}


def _result(**members: Any) -> dict[str, Any]:
    called = {"role": "assistant", "content": [CALL]}
    return {"messages": [USER, called, {"role": "user", "content": [{**RESULT, **members}]}]}


def _tool(**members: Any) -> dict[str, Any]:
    return {"tools": [{name: value for name, value in {**TOOL, **members}.items() if value is not ABSENT}]}


def _choice(**choice: Any) -> dict[str, Any]:
    return {"tools": [TOOL], "tool_choice": choice}


def _format(**form: Any) -> dict[str, Any]:
    return {"output_config": {"format": form}}


WRONG: list[tuple[dict[str, Any], str]] = [
    # types and ranges of fields
    ({"max_tokens": ABSENT}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "x"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"model": 7}, "model"),
    ({"model": []}, "model"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": "x"}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_p": []}, "top_p"),
    ({"top_k": -5}, "top_k"),
    ({"top_k": "x"}, "top_k"),
    ({"min_p": -1}, "min_p"),
    ({"seed": "x"}, "seed"),
    ({"seed": -(2**64)}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [5]}, "stop_sequences[0]"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": ["x" * 101]}, "stop_sequences"),
    ({"stop_sequences": ["x"] * 17}, "stop_sequences"),
    ({"metadata": "x"}, "metadata"),
    ({"service_tier": 5}, "service_tier"),
    ({"mcp_servers": {}}, "mcp_servers"),
    ({"logit_bias": {"1": 1000}}, "logit_bias"),
    ({"regex": "a", "tools": [TOOL]}, "regex"),
    ({"grammar": "", "regex": "a"}, "regex"),
    # thinking and effort
    ({"thinking": "on"}, "thinking"),
    ({"thinking": {}}, "thinking.type"),
    ({"thinking": {"type": "much"}}, "thinking.type"),
    ({"thinking": {"type": 5}}, "thinking.type"),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": "x"}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 5}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "disabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": "loud"}}, "thinking.display"),
    ({"thinking": {"type": "adaptive", "display": 5}}, "thinking.display"),
    ({"output_config": "high"}, "output_config"),
    ({"output_config": {"effort": "huge"}}, "output_config.effort"),
    ({"output_config": {"effort": 5}}, "output_config.effort"),
    # the form of the answer
    ({"output_config": {"format": "json"}}, "output_config.format"),
    (_format(type="xml", schema={}), "output_config.format.type"),
    (_format(schema={}), "output_config.format.type"),
    (_format(type="json_schema"), "output_config.format.schema"),
    (_format(type="json_schema", schema="x"), "output_config.format.schema"),
    (_format(type="json_schema", schema=deep(40)), "output_config.format"),
    ({"output_format": {"type": "json_schema"}}, "output_format.schema"),
    ({"output_format": {"type": "json_schema", "schema": deep(40)}}, "output_format"),
    # the system's text
    ({"system": 5}, "system"),
    ({"system": {}}, "system"),
    ({"system": [5]}, "system[0]"),
    ({"system": [{"text": "x"}]}, "system[0].type"),
    ({"system": [{"type": "text"}]}, "system[0].text"),
    ({"system": [{"type": "text", "text": 5}]}, "system[0].text"),
    ({"system": [{"type": "image"}]}, "system[0].type"),
    ({"system": [{"type": "tool_use", "id": "x", "name": "y", "input": {}}]}, "system[0].type"),
    # messages
    ({"messages": ABSENT}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "Hello"}, "messages"),
    ({"messages": {}}, "messages"),
    ({"messages": []}, "messages"),
    ({"messages": [USER] * 2049}, "messages"),
    ({"messages": ["Hello"]}, "messages[0]"),
    ({"messages": [None]}, "messages[0]"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": 5, "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [USER, {"role": "assistant", "content": [CALL]}]}, "messages[1]"),
    ({"messages": [USER, {"role": "assistant", "content": ""}]}, "messages[1]"),
    ({"messages": [USER, {"role": "assistant", "content": []}]}, "messages[1]"),
    (_block(text="x"), "messages[0].content[0].type"),
    (_block(type="text"), "messages[0].content[0].text"),
    (_block(type="text", text=5), "messages[0].content[0].text"),
    (
        _block(type="image", source={"type": "base64", "media_type": "image/png", "data": "x"}),
        "messages[0].content[0].type",
    ),
    (_block(type="image", source={"type": "url", "url": "https://example.com"}), "messages[0].content[0].type"),
    (_block(type="document", source={"type": "base64", "data": "x"}), "messages[0].content[0].type"),
    (_block(type="document", source={"type": "text"}), "messages[0].content[0].type"),
    (_block(type="document"), "messages[0].content[0].type"),
    (_block(type="search_result"), "messages[0].content[0].type"),
    (_block(type="container_upload"), "messages[0].content[0].type"),
    (_block(type="tool_use", id="c", name="read", input={}), "messages[0].content[0].type"),
    (_block(type="thinking", thinking="x"), "messages[0].content[0].type"),
    (_block(type="Some long text that somebody has put here"), "messages[0].content[0].type"),
    (_block(type="tool_result", content="x"), "messages[0].content[0].tool_use_id"),
    (_block(type="tool_result", tool_use_id=5), "messages[0].content[0].tool_use_id"),
    (_block("assistant", type="text"), "messages[0].content[0].text"),
    (_block("assistant", type="image"), "messages[0].content[0].type"),
    (_block("assistant", type="tool_result", tool_use_id="c"), "messages[0].content[0].type"),
    (_block("assistant", type="thinking", thinking=5), "messages[0].content[0].thinking"),
    (_block("assistant", type="tool_use", name="read", input={}), "messages[0].content[0].id"),
    (_block("assistant", type="tool_use", id="c", input={}), "messages[0].content[0].name"),
    (_block("assistant", type="tool_use", id="c", name="read"), "messages[0].content[0].input"),
    (_block("assistant", type="tool_use", id="c", name="read", input="{}"), "messages[0].content[0].input"),
    (
        _block("assistant", type="tool_use", id="c", name="read", input=deep(40)),
        "messages[0].tool_calls[0].function.arguments",
    ),
    (_block("system", type="image"), "messages[0].content[0].type"),
    (_result(content=5), "messages[2].content[0].content"),
    (_result(content=[5]), "messages[2].content[0].content[0]"),
    (_result(content=[{"type": "text"}]), "messages[2].content[0].content[0].text"),
    (_result(content=[{"type": "tool_use"}]), "messages[2].content[0].content[0].type"),
    (_result(is_error="yes"), "messages[2].content[0].is_error"),
    # tools
    ({"tools": "read"}, "tools"),
    ({"tools": {}}, "tools"),
    ({"tools": ["read"]}, "tools[0]"),
    ({"tools": [{}]}, "tools[0].name"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name"),
    ({"tools": [{**TOOL, "name": f"f{n}"} for n in range(513)]}, "tools"),
    (_tool(name=""), "tools[0].name"),
    (_tool(name="read a file"), "tools[0].name"),
    (_tool(name="<tool_call>"), "tools[0].name"),
    (_tool(name="x" * 129), "tools[0].name"),
    (_tool(name=5), "tools[0].name"),
    (_tool(type=5), "tools[0].type"),
    (_tool(description=5), "tools[0].description"),
    (_tool(strict="yes"), "tools[0].strict"),
    (_tool(defer_loading="yes"), "tools[0].defer_loading"),
    (_tool(input_schema="x"), "tools[0].input_schema"),
    (_tool(input_schema=[]), "tools[0].input_schema"),
    (_tool(input_schema={"type": "array"}), "tools[0].input_schema.type"),
    (_tool(input_schema={"properties": []}), "tools[0].input_schema.properties"),
    (_tool(input_schema=deep(40)), "tools[0].input_schema"),
    # the choice
    ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": 5}, "tool_choice"),
    (_choice(), "tool_choice.type"),
    (_choice(type=5), "tool_choice.type"),
    (_choice(type="required"), "tool_choice.type"),
    (_choice(type="tool"), "tool_choice.name"),
    (_choice(type="tool", name=5), "tool_choice.name"),
    (_choice(type="tool", name="write"), "tool_choice"),
    (_choice(type="auto", disable_parallel_tool_use="yes"), "tool_choice.disable_parallel_tool_use"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "read"}}, "tool_choice"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "any"}}, "tool_choice"),
]
