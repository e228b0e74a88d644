"""Questions about tokens are answered at once, and prompts of all kinds are read, by the engine process."""

import pytest
from msgspec.structs import replace

from tests.engine.fake_runner import ToyModel
from tests.engine.toy_constraint import N_VOCAB
from tests.server.process.test_main import loaded
from tests.toy_engine import TOY
from worker.wire.jobs import Accepted, JobKey, Prompt, SamplingParams, SlotId, StepDone, Submit, TokenId
from worker.wire.messages import QuestionKey, Refused, Tokenize, Tokenized, Untokenized, Violation
from worker.wire.prompts import Conversation

pytestmark = pytest.mark.process

KEY = QuestionKey(3)
HELLO = Conversation(messages='[{"role":"user","content":"hel"},{"role":"user","content":"lo"}]')
REFUSED = Conversation(messages='[{"role":"user","content":"refuse me"}]')
NO_TEXT = Conversation(messages='[{"role":"user","content":""}]')
OUTSIDE = (TokenId(N_VOCAB),)
NO_TOKEN = Violation("tokens", f"vocabulary({N_VOCAB})", "an id is outside the vocabulary")
NO_CHAT = Violation("messages", "chat_template", "the chat template refuses the conversation")


def job(prompt: Prompt, key: int = 1, max_tokens: int = 2) -> Submit:
    return Submit(job=JobKey(key), prompt=prompt, sampling=SamplingParams(seed=1, max_tokens=max_tokens))


def test_a_question_is_answered_with_the_tokens_and_the_text() -> None:
    with loaded(TOY) as engine:
        engine.send(Tokenize(question=KEY, prompt=HELLO), Tokenize(question=KEY, prompt="hello"))
        of_conversation, of_text = engine.next(Tokenized), engine.next(Tokenized)
        assert of_conversation == of_text
        assert (of_text.question, len(of_text.tokens), of_text.text) == (KEY, 5, "hello")
        tokens = of_text.tokens
        engine.send(Tokenize(question=KEY, prompt=tokens))
        again = engine.next(Tokenized)
        assert (again.tokens, again.text, again.question) == (tokens, "".join(map(chr, tokens)), KEY)


@pytest.mark.parametrize(("prompt", "why"), [(REFUSED, NO_CHAT), (OUTSIDE, NO_TOKEN)])
def test_a_prompt_that_cannot_be_read_is_refused_with_the_reason_as_a_job_and_as_a_question(
    prompt: Prompt, why: Violation
) -> None:
    with loaded(TOY) as engine:
        engine.send(Tokenize(question=KEY, prompt=prompt))
        assert engine.next(Untokenized) == Untokenized(question=KEY, violations=(why,))
        engine.send(job(prompt))
        assert engine.next(Refused) == Refused(job=JobKey(1), violations=(why,))


def test_a_prompt_of_any_kind_runs() -> None:
    prompts: tuple[Prompt, ...] = ("hello", HELLO, (TokenId(1), TokenId(2)))
    with loaded(TOY) as engine:
        for key, prompt in enumerate(prompts):
            engine.send(job(prompt, key))
            assert engine.next(Accepted).prompt_tokens == (2 if isinstance(prompt, tuple) else 5)
            assert engine.story()[-1].finished


def test_a_prediction_that_cannot_be_read_is_refused_with_the_prompt() -> None:
    with loaded(TOY) as engine:
        engine.send(replace(job("unreadable"), prediction="unreadable"))
        of_prompt, of_prediction = engine.next(Refused).violations
        assert (of_prompt.field, of_prediction.field) == ("prompt", "prediction")
        assert of_prediction.message == "prediction: the vocabulary lacks a character"


def test_a_prediction_is_drafted_from_and_changes_no_token() -> None:
    held = [TokenId(byte % N_VOCAB) for byte in b"hello"]
    for _ in range(60):
        held.append(ToyModel().draw(SlotId(0), held, 1).token)
    plain = job("hello", max_tokens=60)
    with loaded(TOY) as engine:
        ends, texts = [], []
        for submit in (plain, replace(plain, job=JobKey(2), prediction="".join(map(chr, held[5:])))):
            engine.send(submit)
            steps = engine.story()
            texts.append([delta.text for step in steps for delta in step.deltas])
            ends.append(steps[-1].finished[0])
        assert texts[0] == texts[1]
        # A step that other programs delay costs more, and has fewer drafts.
        assert ends[0].n_accepted == 0
        assert 20 <= ends[1].n_accepted <= 29, "the costs of steps are those of two tokens"


def test_the_limits_of_a_prompt_hold_for_texts_and_conversations() -> None:
    long = Conversation(messages='[{"role":"user","content":"%s"}]' % ("x" * 1024))
    with loaded(TOY) as engine:
        full = "context_length(1024)"
        for prompt, constraint in (("x" * 1024, full), (long, full), (NO_TEXT, "non_empty")):
            engine.send(job(prompt))
            assert [one.constraint for one in engine.next(Refused).violations] == [constraint]


def test_a_question_is_answered_while_a_job_runs() -> None:
    with loaded(TOY) as engine:
        sampling = SamplingParams(seed=1, max_tokens=1000, ignore_eos=True)
        engine.send(Submit(job=JobKey(1), prompt="x", sampling=sampling))
        engine.next(StepDone)
        engine.send(Tokenize(question=KEY, prompt="hello"))
        assert engine.next(Tokenized).text == "hello"
