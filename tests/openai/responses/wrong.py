"""Wrong requests of `/v1/responses`: what is changed in a right one, and the field that the refusal names."""

from typing import Any

RIGHT: dict[str, Any] = {"model": "any", "input": "Hello", "max_output_tokens": 4}

FUNCTION = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {"type": "custom", "name": "patch"}
USER = {"role": "user", "content": "Hello"}
CALL = {"type": "function_call", "call_id": "c", "name": "read", "arguments": "{}"}


def deep(n: int) -> Any:
    """A value that is nested n deep."""
    value: Any = {}
    for _ in range(n):
        value = {"properties": {"a": value}}
    return value


def _part(**members: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": [members]}]}


def _tool(**members: Any) -> dict[str, Any]:
    return {"tools": [{**FUNCTION, **members}]}


def _custom(**form: Any) -> dict[str, Any]:
    return {"tools": [{**CUSTOM, "format": form}]}


def _items(*items: Any) -> dict[str, Any]:
    return {"input": [USER, *items]}


def _choice(choice: Any, *tools: Any) -> dict[str, Any]:
    return {"tools": list(tools) or [FUNCTION], "tool_choice": choice}


def _schema(**form: Any) -> dict[str, Any]:
    return {"text": {"format": form}}


WRONG: list[tuple[dict[str, Any], str]] = [
    # the worker keeps nothing
    ({"store": True}, "store"),
    ({"store": "yes"}, "store"),
    ({"background": True}, "background"),
    ({"background": 1}, "background"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"previous_response_id": 7}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"conversation": {"id": "conv_1"}}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"truncation": True}, "truncation"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"include": ["message.output_text.logprobs"]}, "include"),
    # types and ranges of fields
    ({"model": 7}, "model"),
    ({"instructions": ["x"]}, "instructions"),
    ({"instructions": 7}, "instructions"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": -5}, "max_output_tokens"),
    ({"max_output_tokens": "many"}, "max_output_tokens"),
    ({"max_output_tokens": 1.5}, "max_output_tokens"),
    ({"temperature": 3}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_p": "x"}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"presence_penalty": 9}, "presence_penalty"),
    ({"frequency_penalty": []}, "frequency_penalty"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"stream": "yes"}, "stream"),
    ({"stream": 1}, "stream"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"metadata": []}, "metadata"),
    ({"metadata": "x"}, "metadata"),
    ({"include": 5}, "include"),
    ({"include": [5]}, "include[0]"),
    ({"text": []}, "text"),
    ({"text": {"format": "json"}}, "text.format"),
    ({"user": 5}, "user"),
    ({"service_tier": 5}, "service_tier"),
    ({"prompt_cache_key": {}}, "prompt_cache_key"),
    ({"safety_identifier": []}, "safety_identifier"),
    ({"max_tool_calls": "x"}, "max_tool_calls"),
    ({"stream_options": True}, "stream_options"),
    ({"reasoning": "high"}, "reasoning"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort"),
    ({"reasoning": {"summary": True}}, "reasoning.summary"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 1000}}, "logit_bias"),
    ({"stop_token_ids": [10**9]}, "stop_token_ids"),
    # the form of the answer
    (_schema(type="xml"), "text.format.type"),
    (_schema(), "text.format.type"),
    (_schema(type="json_schema"), "text.format.schema"),
    (_schema(type="json_schema", name="x", schema="y"), "text.format.schema"),
    (_schema(type="json_schema", name="x", schema=deep(40)), "text.format"),
    (_schema(type="json_object") | {"grammar": 'root ::= "a"'}, "grammar"),
    ({"grammar": "", "regex": "a"}, "regex"),
    ({"regex": "a", "tools": [FUNCTION]}, "regex"),
    # the input
    ({"input": None}, "input"),
    ({"input": 5}, "input"),
    ({"input": {}}, "input"),
    ({"input": []}, "input"),
    ({"input": [USER] * 2049}, "input"),
    ({"input": ["Hello"]}, "input[0]"),
    ({"input": [None]}, "input[0]"),
    ({"input": [{"content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": 5, "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]"),
    ({"input": [{"role": "user", "content": [{"text": "x"}]}]}, "input[0].content[0].type"),
    (_part(type="input_image", image_url="data:image/png;base64,xx"), "input[0].content[0].type"),
    (_part(type="input_file", file_id="file_1"), "input[0].content[0].type"),
    (_part(type="input_audio"), "input[0].content[0].type"),
    (_part(type="input_text"), "input[0].content[0].text"),
    (_part(type="input_text", text=5), "input[0].content[0].text"),
    (_part(type="Some long text that somebody has put here"), "input[0].content[0].type"),
    (_items({"type": "item_reference", "id": "x"}), "input[1].type"),
    (_items({"type": "telepathy", "id": "x"}), "input[1].type"),
    (_items({"type": "function_call_", "call_id": "x"}), "input[1].type"),
    (_items({"type": "additional_tools", "tools": "x"}), "input[1].tools"),
    (_items({"type": "tool_search_output", "tools": [{"type": "function"}]}), "input[1].tools[0].name"),
    (_items({"type": 5}), "input[1].type"),
    (_items({"type": "function_call", "name": "read", "arguments": "{}"}), "input[1].call_id"),
    (_items({"type": "function_call", "call_id": "c", "arguments": "{}"}), "input[1].name"),
    (_items({"type": "function_call", "call_id": "c", "name": "read"}), "input[1].arguments"),
    (_items({**CALL, "arguments": {}}), "input[1].arguments"),
    (_items({**CALL, "call_id": 5}), "input[1].call_id"),
    (_items(CALL, {"type": "function_call_output", "output": "x"}), "input[2].call_id"),
    (_items(CALL, {"type": "function_call_output", "call_id": "c"}), "input[2].output"),
    (_items(CALL, {"type": "function_call_output", "call_id": "c", "output": 5}), "input[2].output"),
    (
        _items(CALL, {"type": "function_call_output", "call_id": "c", "output": [{"type": "x"}]}),
        "input[2].output[0].type",
    ),
    (_items({"type": "custom_tool_call", "call_id": "c", "name": "patch"}), "input[1].input"),
    (_items({"type": "custom_tool_call", "call_id": "c", "input": "x"}), "input[1].name"),
    (_items({"type": "custom_tool_call_output", "output": "x"}), "input[1].call_id"),
    (_items({"type": "reasoning", "summary": "x"}), "input[1].summary"),
    (_items({"type": "reasoning", "summary": [], "content": [{"type": "input_image"}]}), "input[1].content[0].type"),
    (_items({"type": "reasoning", "encrypted_content": 5}), "input[1].encrypted_content"),
    (_items(*[CALL] * 129), "input[1].tool_calls"),
    # tools
    ({"tools": "read"}, "tools"),
    ({"tools": {}}, "tools"),
    ({"tools": ["read"]}, "tools[0]"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": 5}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "custom"}]}, "tools[0].name"),
    ({"tools": [{"type": "namespace"}]}, "tools[0].name"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
    ({"tools": [FUNCTION, {**CUSTOM, "name": "read"}]}, "tools[1].name"),
    ({"tools": [{**FUNCTION, "name": f"f{n}"} for n in range(513)]}, "tools"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": "x"}]}, "tools[0].tools"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [FUNCTION] * 2}]}, "tools[0].tools[1].name"),
    (_tool(name=""), "tools[0].name"),
    (_tool(name="read a file"), "tools[0].name"),
    (_tool(name="<tool_call>"), "tools[0].name"),
    (_tool(name="x" * 129), "tools[0].name"),
    (_tool(name=5), "tools[0].name"),
    (_tool(description=5), "tools[0].description"),
    (_tool(strict="yes"), "tools[0].strict"),
    (_tool(parameters="x"), "tools[0].parameters"),
    (_tool(parameters=[]), "tools[0].parameters"),
    (_tool(parameters={"type": "string"}), "tools[0].parameters.type"),
    (_tool(parameters={"properties": []}), "tools[0].parameters.properties"),
    (_tool(parameters=deep(40)), "tools[0].parameters"),
    (_custom(type="xml"), "tools[0].format.type"),
    (_custom(type="grammar", syntax="lark"), "tools[0].format.definition"),
    (_custom(type="grammar", syntax="ebnf", definition="x"), "tools[0].format.syntax"),
    (_custom(type="grammar", definition="x"), "tools[0].format.syntax"),
    ({"tools": [{**CUSTOM, "format": "lark"}]}, "tools[0].format"),
    # the choice
    (_choice("always"), "tool_choice"),
    (_choice(5), "tool_choice"),
    (_choice({}), "tool_choice.type"),
    (_choice({"type": "web_search"}), "tool_choice.type"),
    (_choice({"type": "function"}), "tool_choice.name"),
    (_choice({"type": "function", "name": 5}), "tool_choice.name"),
    (_choice({"type": "function", "name": "write"}), "tool_choice"),
    (_choice({"type": "custom", "name": "write"}), "tool_choice"),
    (_choice({"type": "allowed_tools", "mode": "never", "tools": [FUNCTION]}), "tool_choice.mode"),
    (_choice({"type": "allowed_tools", "mode": "auto"}), "tool_choice.tools"),
    (_choice({"type": "allowed_tools", "mode": "auto", "tools": ["x"]}), "tool_choice.tools[0]"),
    (_choice({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]}), "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "read"}}, "tool_choice"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
]
