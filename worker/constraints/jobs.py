"""The constraints of one model's jobs: what a job asks for becomes a constraint, or a refusal."""

from collections.abc import Callable
from collections.abc import Sequence as Seq

import llguidance

from worker.constraints.answer import AnswerConstraint, Calls
from worker.constraints.calls import BadTool, CallCompiler, controls_of
from worker.constraints.constraint import UNTRIED_BYTES, Constraint, Field, Unsupported, compiled
from worker.constraints.text_markers import Begin, TextReasoning
from worker.constraints.vocabulary import Tokens, Vocabulary
from worker.engine.channels import NO_CONTROL_TOKENS, ControlTokens, Transition
from worker.wire.chat_format import HERMES, ChatFormat
from worker.wire.jobs import Submit
from worker.wire.messages import Violation
from worker.wire.prompts import Tools

AnyConstraint = Constraint | AnswerConstraint


class Constraints:
    """The constraints of one model, for `LoadedModel.constrain`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        give_back: Callable[[], None],
        marks: ControlTokens = NO_CONTROL_TOKENS,
        form: ChatFormat = HERMES,
    ) -> None:
        """This takes some tenths of a second, because the library reads the whole vocabulary. `give_back` returns freed
        memory to the system; it is called after a long constraint was compiled. `form` is the form of calls.
        """
        self._tokens = Tokens(vocabulary)
        self._give_back = give_back
        self._marks = marks
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(self._tokens), n_vocab=len(self._tokens.tokens), eos_token=self._tokens.ends
        )
        controls = controls_of(marks.names, self._tokens)
        self._calls = CallCompiler(self._tokenizer, self._tokens, controls, form.calls)
        self._text_markers: TextReasoning | None = None
        """The markers of the reasoning if they are text."""
        if marks.text_markers is not None:
            begin, end = (
                Begin(tuple(controls.parts(text))) for text in (marks.text_markers[0], marks.text_markers[1].rstrip())
            )
            is_ended_by_call = form.reasoning is not None and form.reasoning.is_ended_by_call
            self._text_markers = TextReasoning(begin, end, self._tokens, is_ended_by_call=is_ended_by_call)

    def constrain(self, submit: Submit) -> AnyConstraint | Violation | None:
        """The job's constraint, which is the caller's to close, or what is wrong with the one it asks for."""
        if submit.tools is not None:
            return self._of_calls(submit, submit.tools)
        asked: dict[Field, str | None] = {
            "grammar": submit.sampling.grammar,
            "json_schema": submit.sampling.json_schema,
            "regex": submit.sampling.regex,
        }
        for field, text in asked.items():
            if text is not None:
                found = self._of_text(field, text)
                return found if isinstance(found, Violation) else self._behind_reasoning(found, submit)
        is_budgeted = submit.reasoning_budget is not None and submit.marks == "split"
        can_close = self._marks.closers or self._marks.text_markers
        return self._answer(submit) if is_budgeted and can_close else None

    def _of_text(self, field: Field, text: str) -> Constraint | Violation:
        tokens = self._tokens
        try:
            return Constraint(compiled(self._tokenizer, field, text, tokens.token_of), tokens)
        except Unsupported as error:
            return Violation(field, "supported", f"{field}: {error}")
        finally:
            if len(text) > UNTRIED_BYTES:
                self._give_back()

    def _behind_reasoning(self, constraint: Constraint, submit: Submit) -> AnyConstraint:
        """The reasoning of a divided answer is free."""
        if submit.marks != "split" or not (self._marks.turns or self._marks.text_markers):
            return constraint
        has_heads = Transition.BODY in self._marks.turns.values()
        return self._answer(submit, whole=[self._calls.head(), constraint] if has_heads else [constraint])

    def _of_calls(self, submit: Submit, tools: Tools) -> AnyConstraint | Violation | None:
        try:
            if tools.is_required or submit.sampling.json_schema is not None:
                schema = None if tools.is_required else submit.sampling.json_schema
                return self._answer(submit, whole=[self._calls.whole(tools, schema)])
            calls, unenforced_tools = self._calls.in_free_answer(tools)
        except BadTool as error:
            return Violation("tools", "supported", str(error))
        except Unsupported as error:
            return Violation("json_schema", "supported", f"json_schema: {error}")
        finally:
            if sum(len(tool.parameters) for tool in tools.tools) > UNTRIED_BYTES:
                self._give_back()
        if calls is None and not unenforced_tools and submit.reasoning_budget is None:
            return None
        return self._answer(submit, calls=calls, unenforced_tools=unenforced_tools)

    def _answer(
        self,
        submit: Submit,
        *,
        whole: Seq[Constraint] = (),
        calls: Calls | None = None,
        unenforced_tools: tuple[int, ...] = (),
    ) -> AnswerConstraint:
        budget = submit.reasoning_budget if submit.marks == "split" else None
        return AnswerConstraint(
            self._tokens,
            self._marks,
            whole=whole,
            calls=calls,
            unenforced_tools=unenforced_tools,
            text_markers=self._text_markers,
            budget=budget,
        )
