"""All messages between the two processes.

They are the frames on the socketpair (msgspec structs, tagged, array-like): of jobs in jobs.py, of the model and its
engine in load.py, questions about tokens in questions.py, cached blocks in blocks.py. The first frame is a dataclass
(config/engine_settings.py). This room knows nothing of HTTP, llama.cpp or numpy.
"""

from worker.wire.blocks import BlocksChanged
from worker.wire.jobs import Accepted, Cancel, StepBegun, StepDone, Submit
from worker.wire.load import AskResidency, Loaded, LoadFailed, PrefixCacheFound, Progress, Residency, Warned
from worker.wire.questions import Detokenize, Detokenized, Tokenize, Tokenized, Untokenized
from worker.wire.refusals import Refused

Inbound = Submit | Cancel | AskResidency | Tokenize | Detokenize
Outbound = (
    Progress
    | Warned
    | Loaded
    | LoadFailed
    | Accepted
    | Refused
    | StepBegun
    | StepDone
    | PrefixCacheFound
    | Residency
    | Tokenized
    | Untokenized
    | Detokenized
    | BlocksChanged
)
