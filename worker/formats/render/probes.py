"""Probes of a chat template: it renders conversations of all shapes when it is loaded.

Each form is first tried unchanged, and in another way only if the template refuses it or omits a part.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from worker.formats.render.escapes import Json
from worker.formats.render.forms import Forms, Message
from worker.formats.render.sandbox import BrokenTemplate, Runaway, Unrendered

_ARGUMENTS = '{"place": "sample-argument"}'
_OBJECT: Json = {"place": "sample-argument"}
_NINE = "sample123"
"""Mistral's templates support no other length."""


def offered(name: str, properties: dict[str, Json]) -> Json:
    """A tool that needs all of these parameters."""
    parameters: Json = {"type": "object", "properties": properties, "required": list(properties)}
    function: Json = {"name": name, "description": "sample-description", "parameters": parameters}
    return {"type": "function", "function": function}


_TOOL = offered("sample_tool", {"place": {"type": "string"}})


def says(role: str, content: Json) -> Message:
    """A message of this role."""
    return {"role": role, "content": content}


_SYSTEM, _RULE = says("system", "sample-system"), says("system", "sample-rule")
_DEVELOPER = says("developer", "sample-developer")
_USER, _AGAIN, _MORE = says("user", "sample-user"), says("user", "sample-again"), says("user", "sample-more")
_REPLY, _THEN = says("assistant", "sample-reply"), says("assistant", "sample-then")
_FIRST, _SECOND = "call_sample0000000000000001", "call_sample0000000000000002"


def call(call_id: str | None, arguments: Json, name: str = "sample_tool") -> Json:
    """A call of a tool."""
    function: Json = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function} | ({} if call_id is None else {"id": call_id})


def calling(*calls: Json, content: Json = None) -> Message:
    """An assistant's message with calls."""
    return {**says("assistant", content), "tool_calls": list(calls)}


def _result(call_id: str | None, content: Json = "sample-result") -> Message:
    result: Message = {"role": "tool", "name": "sample_tool", "content": content}
    return result if call_id is None else {**result, "tool_call_id": call_id}


@dataclass
class Probes:
    """The test renderings of one template. Its methods raise BrokenTemplate if a rendering does not end."""

    source: str
    rendered: Callable[[list[Message], Forms, Json], str]
    """The prompt with the messages in these forms, and with these tools. Raises: Unrendered."""
    has_all: Callable[[list[Message], Forms, Json], bool]
    """True if the rendering contains all of the messages, in their order. Raises: Unrendered."""
    refusals: list[str] = field(default_factory=list)

    def contents(self) -> Forms:
        """The forms of contents and arguments that the template supports."""
        of_text, of_parts = self._text(_USER), self._text(says("user", [{"type": "text", "text": "sample-user"}]))
        if "sample-user" not in of_text + of_parts:
            raise BrokenTemplate(self.refusals[0] if self.refusals else "it omits the user's message")

        def calls(arguments: Json, content: Json, *more: Message) -> str:
            return self._text(_USER, calling(call(_NINE, arguments), content=content), *more, tools=[_TOOL])

        takes_argument_text = _ARGUMENTS in calls(_ARGUMENTS, "", _result(_NINE))
        arguments: Json = _ARGUMENTS if takes_argument_text else _OBJECT
        blank, null = calls(arguments, ""), calls(arguments, None)
        return Forms(
            caps=self._caps(arguments),
            takes_parts=of_parts == of_text or "sample-user" not in of_text,
            takes_text="sample-user" in of_text,
            takes_null=(bool(null) and "None" not in null) or not blank,
            takes_argument_text=takes_argument_text,
            takes_argument_object=not takes_argument_text or "sample-argument" in calls(_OBJECT, "", _result(_NINE)),
        )

    def _caps(self, arguments: Json) -> frozenset[str]:
        with_call, result, tools = calling(call(_NINE, arguments), content=""), _result(_NINE), [_TOOL]
        thought: Message = {"reasoning_content": "sample-reasoning"}
        thoughts = self._text(_USER, _REPLY | thought) + self._text(_USER, with_call | thought, result, tools=tools)
        shown = {
            "system": "sample-system" in self._text(_SYSTEM, _USER),
            # A template that writes any role supports no particular one.
            "developer": "developer" in self.source and "sample-developer" in self._text(_DEVELOPER, _USER),
            "tools": "sample_tool" in self._text(_USER, tools=tools),
            "tool_calls": "sample-argument" in self._text(_USER, with_call, result, _REPLY, _USER, tools=tools),
            "tool_results": "tool" in self.source
            and "sample-result" in self._text(_USER, with_call, result, tools=tools),
            "reasoning": "sample-reasoning" in thoughts,
        }
        return frozenset(cap for cap, is_shown in shown.items() if is_shown)

    def forms(self, known: Forms, *, has_tools: bool) -> Forms:
        """`known` with all other supported forms, for conversations with or without tools."""
        tools: Json = [_TOOL] if has_tools else None
        developers = [_DEVELOPER] if "developer" in known.caps else []
        later = [_RULE, *developers]
        forms = known
        for name, conversations in {
            "takes_users": [[_USER, _AGAIN], [_USER, _REPLY, _AGAIN, _MORE]],
            "takes_replies": [[_USER, _REPLY, _THEN, _AGAIN]],
            "takes_reply_first": [[_REPLY, _USER]],
            "takes_empty_reply": [[_USER, says("assistant", ""), _AGAIN]],
            "takes_system": [[_SYSTEM, _USER]],
            "takes_systems": [[_SYSTEM, _RULE, _USER], *([_SYSTEM, one, _USER] for one in developers)],
            "takes_later_system": [
                *([_USER, one] for one in later),
                *([*before, one, _AGAIN] for before in ([_SYSTEM, _USER], [_USER, _REPLY]) for one in later),
            ],
        }.items():
            forms = self._first(forms, tools, [{name: True}, {name: False}], conversations)
        return self._with_calls(forms, tools)

    def _with_calls(self, forms: Forms, tools: Json) -> Forms:
        arguments: Json = _ARGUMENTS if forms.takes_argument_text else _OBJECT
        first = call(_FIRST, arguments)
        rounds = [
            [_USER, calling(first, content=content), _result(_FIRST), *more]
            for content in (None, "")
            for more in ([], [_REPLY, _AGAIN])
        ]
        blanks = [{}, {"takes_null": True, "takes_blank": False}, {"takes_null": False, "takes_blank": True}]
        ways: list[dict[str, object]] = [
            {"takes_calls": is_own, "takes_results": has_results, "ids": ids, **blank}
            for is_own, has_results in ((True, True), (True, False), (False, True), (False, False))
            # A template that writes any role supports no particular one.
            if not has_results or "tool" in self.source
            for ids in ("own", "nine", "named")
            for blank in blanks
            if is_own or (ids == "own" and not blank)
        ]
        forms = self._first(forms, tools, ways, rounds)
        if forms.takes_calls:
            both = calling(first, call(_SECOND, arguments))
            for name, conversation in {
                "text_with_calls": [_USER, calling(first, content="sample-beside"), _result(_FIRST)],
                "several_calls": [_USER, both, _result(_FIRST), _result(_SECOND, "sample-second")],
            }.items():
                named: list[dict[str, object]] = [{name: way} for way in ("own", "split", "text")]
                forms = self._first(forms, tools, named, [[*conversation, _REPLY, _AGAIN]])
        for name, conversations in {
            "takes_stray_results": [
                [_USER, _result(_FIRST)],
                [_USER, _REPLY, _result(_FIRST), _AGAIN],
                [_USER, calling(first), _result(_SECOND)],
            ],
            "takes_no_id": [[_USER, calling(call(None, arguments)), _result(None)]],
        }.items():
            forms = self._first(forms, tools, [{name: True}, {name: False}], conversations)
        return forms

    def _text(self, *messages: Message, tools: Json = None) -> str:
        """The rendered text, empty if the template refuses."""
        try:
            return self.rendered(list(messages), Forms(), tools)
        except Runaway as error:
            raise BrokenTemplate(str(error)) from None
        except Unrendered as error:
            self.refusals.append(str(error))
            return ""

    def _first(
        self, forms: Forms, tools: Json, ways: Sequence[dict[str, object]], conversations: list[list[Message]]
    ) -> Forms:
        """The forms with the first of these changes that renders all of each conversation, else unchanged."""
        for way in ways:
            changed = replace(forms, **way)  # type: ignore[arg-type]
            try:
                if all(self.has_all(conversation, changed, tools) for conversation in conversations):
                    return changed
            except Runaway as error:
                raise BrokenTemplate(str(error)) from None
            except Unrendered:
                continue
        return forms
