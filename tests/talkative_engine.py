"""The toy engine, whose library warns at every step at length: `python -m tests.talkative_engine FD GENERATION`.

A worker in front of it has more to log than anybody reads.
"""

import sys

from tests.engine.fake_runner import FakeRunner
from tests.toy_engine import load_with
from worker.engine.backend import Sampled, Step
from worker.process.main import main

STEP_BYTES = 1024 * 1024
LINE = "llama.cpp warning: " + "x" * 4000 + "\n"


class TalkativeRunner(FakeRunner):
    def run(self, step: Step) -> list[Sampled]:
        sys.stderr.write(LINE * (STEP_BYTES // len(LINE)))
        sys.stderr.flush()
        return super().run(step)


if __name__ == "__main__":
    main(load_with(TalkativeRunner))
