"""Probes of a chat template: it renders conversations of all shapes when it is loaded.

Each form is first tried unchanged, and in another way only if the template refuses it or omits a part.
"""

from dataclasses import dataclass, field, replace
from typing import Protocol

from worker.formats.render.escapes import Json
from worker.formats.render.forms import Forms, Message
from worker.formats.render.sandbox import BrokenTemplate, Runaway, Unrendered


class Template(Protocol):
    """The template that is probed."""

    source: str

    def in_forms(self, messages: list[Message], forms: Forms, *, tools: Json) -> str:
        """The prompt with the messages in these forms. Raises: Unrendered."""

    def says(self, messages: list[Message], forms: Forms, *, tools: Json) -> bool:
        """True if the rendering contains all of the messages, in their order. Raises: Unrendered."""


_ARGUMENTS = '{"place": "sample-argument"}'
_OBJECT: Json = {"place": "sample-argument"}
_NINE = "sample123"
"""Mistral's templates support no other length."""
_TOOL: Json = {
    "type": "function",
    "function": {
        "name": "sample_tool",
        "description": "sample-description",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}


def _says(role: str, content: Json) -> Message:
    return {"role": role, "content": content}


_SYSTEM, _RULE = _says("system", "sample-system"), _says("system", "sample-rule")
_DEVELOPER = _says("developer", "sample-developer")
_USER, _AGAIN, _MORE = _says("user", "sample-user"), _says("user", "sample-again"), _says("user", "sample-more")
_REPLY, _THEN = _says("assistant", "sample-reply"), _says("assistant", "sample-then")
_FIRST, _SECOND = "call_sample0000000000000001", "call_sample0000000000000002"


def _call(call_id: str | None, arguments: Json, name: str = "sample_tool") -> Json:
    function: Json = {"name": name, "arguments": arguments}
    return {"type": "function", "function": function} | ({} if call_id is None else {"id": call_id})


def _calling(*calls: Json, content: Json = None) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def _result(call_id: str | None, content: Json = "sample-result") -> Message:
    name: Message = {"role": "tool", "name": "sample_tool", "content": content}
    return name if call_id is None else {**name, "tool_call_id": call_id}


@dataclass
class _Trial:
    """The renderings of conversations in all kinds of forms."""

    template: Template
    tools: Json
    refusals: list[str] = field(default_factory=list)

    def text(self, *messages: Message, tools: Json = None) -> str:
        """The rendered text, empty if the template refuses. Raises: BrokenTemplate."""
        try:
            return self.template.in_forms(list(messages), Forms(), tools=tools)
        except Runaway as error:
            raise BrokenTemplate(str(error)) from None
        except Unrendered as error:
            self.refusals.append(str(error))
            return ""

    def says(self, forms: Forms, *conversations: list[Message]) -> bool:
        """True if each conversation's rendering contains all of it. Raises: BrokenTemplate."""
        try:
            return all(self.template.says(conversation, forms, tools=self.tools) for conversation in conversations)
        except Runaway as error:
            raise BrokenTemplate(str(error)) from None
        except Unrendered:
            return False

    def first_that_says(self, forms: Forms, ways: list[dict[str, object]], *conversations: list[Message]) -> Forms:
        """The forms with the first of these changes that renders all of each conversation, else unchanged."""
        for way in ways:
            changed = replace(forms, **way)  # type: ignore[arg-type]
            if self.says(changed, *conversations):
                return changed
        return forms

    def tried(
        self, forms: Forms, name: str, *conversations: list[Message], values: tuple[object, ...] = (True, False)
    ) -> Forms:
        """The forms with the first of the field's values that renders all of each conversation, else unchanged."""
        return self.first_that_says(forms, [{name: value} for value in values], *conversations)

    def caps(self, arguments: Json) -> frozenset[str]:
        source = self.template.source
        thinking: Message = {**_REPLY, "reasoning_content": "sample-reasoning"}
        calling, result, tools = _calling(_call(_NINE, arguments), content=""), _result(_NINE), [_TOOL]
        thinking_call: Message = {**calling, "reasoning_content": "sample-reasoning"}
        shown = {
            "system": "sample-system" in self.text(_SYSTEM, _USER),
            # A template that writes any role supports no particular one.
            "developer": "developer" in source and "sample-developer" in self.text(_DEVELOPER, _USER),
            "tools": "sample_tool" in self.text(_USER, tools=tools),
            "tool_calls": "sample-argument" in self.text(_USER, calling, result, _REPLY, _USER, tools=tools),
            "tool_results": "tool" in source and "sample-result" in self.text(_USER, calling, result, tools=tools),
            "reasoning": "sample-reasoning"
            in self.text(_USER, thinking) + self.text(_USER, thinking_call, result, tools=tools),
        }
        return frozenset(cap for cap, is_shown in shown.items() if is_shown)


def contents_known(template: Template) -> Forms:
    """The forms of contents and arguments that the template supports. Raises: BrokenTemplate."""
    trial = _Trial(template, None)
    parts: Json = [{"type": "text", "text": "sample-user"}]
    of_text, of_parts = trial.text(_USER), trial.text({**_USER, "content": parts})
    if "sample-user" not in of_text + of_parts:
        raise BrokenTemplate(trial.refusals[0] if trial.refusals else "it omits the user's message")

    def calls(arguments: Json, content: Json, *more: Message) -> str:
        return trial.text(_USER, _calling(_call(_NINE, arguments), content=content), *more, tools=[_TOOL])

    takes_argument_text = _ARGUMENTS in calls(_ARGUMENTS, "", _result(_NINE))
    arguments: Json = _ARGUMENTS if takes_argument_text else _OBJECT
    blank, null = calls(arguments, ""), calls(arguments, None)
    return Forms(
        caps=trial.caps(arguments),
        takes_parts=of_parts == of_text or "sample-user" not in of_text,
        takes_text="sample-user" in of_text,
        takes_null=(bool(null) and "None" not in null) or not blank,
        takes_argument_text=takes_argument_text,
        takes_argument_object=not takes_argument_text or "sample-argument" in calls(_OBJECT, "", _result(_NINE)),
    )


def forms_known(template: Template, known: Forms, *, has_tools: bool) -> Forms:
    """`known` with all other supported forms, for conversations with or without tools. Raises: BrokenTemplate."""
    trial = _Trial(template, [_TOOL] if has_tools else None)
    return _calls_known(trial, _turns_known(trial, known))


def _turns_known(trial: _Trial, forms: Forms) -> Forms:
    forms = trial.tried(forms, "takes_users", [_USER, _AGAIN], [_USER, _REPLY, _AGAIN, _MORE])
    forms = trial.tried(forms, "takes_replies", [_USER, _REPLY, _THEN, _AGAIN])
    forms = trial.tried(forms, "takes_reply_first", [_REPLY, _USER])
    forms = trial.tried(forms, "takes_empty_reply", [_USER, _says("assistant", ""), _AGAIN])
    forms = trial.tried(forms, "takes_system", [_SYSTEM, _USER])
    developers = [_DEVELOPER] if "developer" in forms.caps else []
    several = [[_SYSTEM, _RULE, _USER], *([_SYSTEM, one, _USER] for one in developers)]
    forms = trial.tried(forms, "takes_systems", *several)
    later = [_RULE, *developers]
    return trial.tried(
        forms,
        "takes_later_system",
        *([_USER, one] for one in later),
        *([_SYSTEM, _USER, one, _AGAIN] for one in later),
        *([_USER, _REPLY, one, _AGAIN] for one in later),
    )


def _calls_known(trial: _Trial, forms: Forms) -> Forms:
    arguments: Json = _ARGUMENTS if forms.takes_argument_text else _OBJECT
    first = _call(_FIRST, arguments)
    rounds = [
        [_USER, _calling(first, content=content), _result(_FIRST), *more]
        for content in (None, "")
        for more in ([], [_REPLY, _AGAIN])
    ]
    blanks = [{}, {"takes_null": True, "takes_blank": False}, {"takes_null": False, "takes_blank": True}]
    ways: list[dict[str, object]] = [
        {"takes_calls": is_own, "takes_results": has_results, "ids": ids, **blank}
        for is_own, has_results in ((True, True), (True, False), (False, True), (False, False))
        # A template that writes any role supports no particular one.
        if not has_results or "tool" in trial.template.source
        for ids in ("own", "nine", "named")
        for blank in blanks
        if is_own or (ids == "own" and not blank)
    ]
    forms = trial.first_that_says(forms, ways, *rounds)
    ways_of_text = ("own", "split", "text")
    if forms.takes_calls:
        text_and_call = [_USER, _calling(first, content="sample-beside"), _result(_FIRST), _REPLY, _AGAIN]
        forms = trial.tried(forms, "text_with_calls", text_and_call, values=ways_of_text)
        both = _calling(first, _call(_SECOND, arguments))
        two_calls = [_USER, both, _result(_FIRST), _result(_SECOND, "sample-second"), _REPLY, _AGAIN]
        forms = trial.tried(forms, "several_calls", two_calls, values=ways_of_text)
    stray = [[_USER, _result(_FIRST)], [_USER, _REPLY, _result(_FIRST), _AGAIN]]
    forms = trial.tried(forms, "takes_stray_results", *stray, [_USER, _calling(first), _result(_SECOND)])
    return trial.tried(forms, "takes_no_id", [_USER, _calling(_call(None, arguments)), _result(None)])
