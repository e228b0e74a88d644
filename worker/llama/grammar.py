"""Grammars of one model: compiled once, cloned per job."""

from worker.engine.contract import Constraint, Submit, Violation
from worker.llama.model import Model


class Grammars:
    def __init__(self, model: Model) -> None:
        self._model = model

    def constrain(self, submit: Submit) -> Constraint | Violation | None:
        return None
