"""The page of error codes: what each API calls an error, with its status, its cause and its remedy."""

from collections.abc import Iterator
from typing import Final, get_args

from tools.markdown import table
from tools.reference.text import PAGE_TEXTS, TEXTS, code, page, sentence
from worker import errors
from worker.apis.core.errors import CODES, OTHER_CODE, error_detail, failure_status, status_type
from worker.apis.core.events import ErrorEvent, StreamCode
from worker.apis.messages.errors import error_detail as messages_detail
from worker.apis.messages.errors import type_of
from worker.errors import StartupError, UsageError, WorkerBusy, WorkerError, WorkerLoading
from worker.server.web.refusals import HTTP_ERRORS


def errors_page() -> str:
    tables = {
        "refusals": table(("code", "status", "retriable", *_LAST, "on `/v1`", "on `/v1/messages`"), _refusals()),
        "stream": table(("code", *_LAST, "status on `/v1`", "type on `/v1`", "type on `/v1/messages`"), _streams()),
        "api": table(("code", "status", *_LAST), _api()),
        "startup": table(("code", "exit code", *_LAST), _startup()),
    }
    return page("Error codes", "errors", *(f"{PAGE_TEXTS[name]}\n\n{rows}" for name, rows in tables.items()))


_LAST: Final = ("cause", "what to do")


def refusal_classes() -> list[type[WorkerError]]:
    """The errors that a request can be refused with, one for each code."""
    return [cls for cls in _classes() if not issubclass(cls, StartupError | UsageError)]


def startup_classes() -> list[type[WorkerError]]:
    """The errors that end the worker, one for each code."""
    found = {cls.code: cls for cls in _classes() if issubclass(cls, StartupError | UsageError)}
    return list(found.values())


def api_codes() -> dict[str, int]:
    """The codes of /v1 that come from no refusal class of the protocol, with their statuses."""
    return {
        **dict.fromkeys([OTHER_CODE, *CODES.values()], 400),
        "model_not_found": 404,
        "invalid_api_key": 401,
        **{code: status for status, (_, code, _) in HTTP_ERRORS.items()},
    }


def _classes() -> list[type[WorkerError]]:
    known = (cls for cls in vars(errors).values() if isinstance(cls, type) and issubclass(cls, WorkerError))
    return [cls for cls in known if "code" in vars(cls) and cls is not WorkerError]


def _example(cls: type[WorkerError]) -> WorkerError:
    if issubclass(cls, WorkerBusy | WorkerLoading):
        return cls("", 1)
    return cls("")


def _refusals() -> Iterator[tuple[str, ...]]:
    for cls in refusal_classes():
        detail, retriable = error_detail(_example(cls)), "yes" if cls.retriable else "no"
        api = f"{code(detail.code or '')} ({detail.type})"
        messages = code(messages_detail(_example(cls)).type)
        yield code(cls.code), str(cls.http_status), retriable, *_words("refusals", cls.code), api, messages


def _streams() -> Iterator[tuple[str, ...]]:
    for one in get_args(StreamCode):
        status = failure_status(ErrorEvent(code=one, message="", retriable=False))
        yield code(one), *_words("stream", one), str(status), code(status_type(status)), code(type_of(status))


def _api() -> Iterator[tuple[str, ...]]:
    for name, status in api_codes().items():
        yield code(name), str(status), *_words("api", name)


def _startup() -> Iterator[tuple[str, ...]]:
    for cls in startup_classes():
        yield code(cls.code), "2" if issubclass(cls, UsageError) else "1", *_words("startup", cls.code)


def _words(kind: str, name: str) -> tuple[str, str]:
    meaning = TEXTS[kind][name]
    return sentence(meaning["cause"]), sentence(meaning["remedy"])
