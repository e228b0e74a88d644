"""The constraints of a model: its vocabulary in the form that the room of constraints asks for."""

from worker.constraints.jobs import Constraints
from worker.constraints.vocabulary import Vocabulary
from worker.engine.channels import NO_CONTROL_TOKENS, ControlTokens
from worker.llama.library import give_back_memory
from worker.llama.model import Model
from worker.wire.chat_format import HERMES, ChatFormat


def constraints_of(model: Model, marks: ControlTokens = NO_CONTROL_TOKENS, form: ChatFormat = HERMES) -> Constraints:
    """Return the compiler of jobs' constraints; made once for a model, in some tenths of a second."""
    vocabulary = Vocabulary(
        pieces=model.pieces,
        ends=model.ends,
        piece=model.piece,
        name=model.text_of,
        token_of=model.token_of,
        spell=model.spell,
    )
    return Constraints(vocabulary, give_back=give_back_memory, marks=marks, form=form)
