"""The fields of requests in other forms than a chat's, read by the rules of chats.

Pure.
"""

from collections.abc import Mapping
from dataclasses import replace

from worker.openai.errors import refused_as_spelled
from worker.openai.fields import SHARED, GeneratingRequest, Generation, Members, Terms, read_generation
from worker.protocol.bodies import FieldsRefused, Problems


def read_foreign(
    problems: Problems,
    members: Members,
    request: GeneratingRequest,
    terms: Terms,
    *,
    max_tokens: int | None,
    names: Mapping[str, str],
) -> Generation:
    """Read the fields of a request in another protocol's form, of which `request` has those that a chat has, too. Of
    the members only the sampling fields of `/execute` are read. `names`: the client's names of a chat's fields.

    Raises: see read_generation.
    """
    own = {name: value for name, value in members.items() if name in SHARED}
    try:
        read = read_generation(problems, own, request, terms, logprobs=None, max_tokens=max_tokens, names=names)
    except FieldsRefused as refused:
        raise refused_as_spelled(refused, names) from None
    return replace(read, names={**read.names, **names})
