"""Every error a user can meet, as one tree: the caller's mistakes, the worker's states, defects, a StartupError that
ends the process with 1, a UsageError that ends it with 2.

`code`, `http_status` and `retriable` are class attributes (docs/protocol.md#http). Errors are caught by type, never by
text.
"""

from typing import ClassVar


class WorkerError(Exception):
    """An error with a stable code. `str(error)` is the one line a person reads."""

    code: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500
    retriable: ClassVar[bool] = True
    wording: ClassVar[str] = "{}"
    unquoted: ClassVar[str] = ""
    """The log's text, if the message quotes the request."""

    def __init__(self, message: str) -> None:
        super().__init__(self.wording.format(message) if "{}" in self.wording else self.wording)

    @property
    def reason(self) -> str:
        """The log's text for a refusal; it never quotes the request."""
        return self.unquoted or str(self)


class InvalidRequest(WorkerError):
    code, http_status, retriable = "INVALID_REQUEST", 400, False
    wording, unquoted = "Invalid request: {}", "a value is not valid"


class UnreadableDeadline(InvalidRequest):
    unquoted = "X-Deadline is not a time"


class Unauthorized(WorkerError):
    code, http_status, retriable = "UNAUTHORIZED", 401, False


class Forbidden(WorkerError):
    code, http_status, retriable = "FORBIDDEN", 403, False
    unquoted = "a page of another origin sent it"
    wording = (
        "a page of another origin ({}) sent this request: give the worker --cors-origin and that origin, or a token"
    )


class WrongHost(WorkerError):
    code, http_status, retriable = "WRONG_HOST", 421, False
    unquoted = "Host is not a name of this worker"
    wording = "the host {} is not known to be this worker: start it with --allowed-host and this name, or with a token"


class DuplicateJob(WorkerError):
    code, http_status, retriable = "DUPLICATE_JOB", 409, False


class DeadlineExceeded(WorkerError):
    code, http_status, retriable = "DEADLINE_EXCEEDED", 504, False


class RetryLater(WorkerError):
    """`retry_after_s` is what the measured throughput suggests."""

    http_status, retriable = 503, True

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class WorkerBusy(RetryLater):
    """The queue is full."""

    code = "WORKER_BUSY"


class WorkerLoading(RetryLater):
    code = "WORKER_LOADING"


class WorkerDraining(WorkerError):
    code, http_status, retriable = "WORKER_DRAINING", 503, True


class WorkerUnhealthy(WorkerError):
    code, http_status, retriable = "WORKER_UNHEALTHY", 503, False
    wording = "Worker unhealthy: {}"


class InternalError(WorkerError):
    code, http_status, retriable = "INTERNAL", 500, True
    wording = "Internal error: {}"


class InferenceFailed(WorkerError):
    """The request has crashed two engines and does not run on a third. In a stream this is an event."""

    code, http_status, retriable = "INFERENCE_FAILED", 500, False


class StartupError(WorkerError):
    """The worker cannot start, or cannot go on: one line on stderr, exit 1."""

    code, http_status, retriable = "WORKER_START_FAILED", 500, False


class ModelNotFound(StartupError):
    code = "MODEL_NOT_FOUND"


class BadModelFile(StartupError):
    """The GGUF does not satisfy docs/protocol.md#gguf-files. The message says what, where and why."""

    code = "MODEL_LOAD_FAILED"


class ModelLoadFailed(StartupError):
    code = "MODEL_LOAD_FAILED"


class CertificateRefused(StartupError):
    """`--parity-report` names no report, or one that did not pass; or `--require-parity` finds that it does not cover
    what runs here."""

    code = "PARITY_REPORT_REFUSED"


class InsufficientMemory(StartupError):
    code = "INSUFFICIENT_VRAM"

    def __init__(self, message: str, *, needed_bytes: int, available_bytes: int, device: str | None = None) -> None:
        """`device`: the one that has too little, where it is known."""
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes
        self.device = device


class DownloadFailed(StartupError):
    code = "MODEL_DOWNLOAD_FAILED"


class BindFailed(StartupError):
    code = "BIND_FAILED"


class CallbackFailed(StartupError):
    code = "CALLBACK_FAILED"
    wording = "Pool manager callback failed: {}"


class EngineCrashed(StartupError):
    """The engine died at a bad moment or too often; the message ends with the library's last line."""

    code = "ENGINE_CRASHED"

    def __init__(self, what: str, cause: str, last_words: str) -> None:
        super().__init__(f"{what}: {cause}" + (f"; last line of its log: {last_words}" if last_words else ""))


class InternalFailure(StartupError):
    """A part of the front has ended that nothing replaces: a defect of ours or of a library. The cause's traceback is
    logged with it."""

    code = "INTERNAL"

    def __init__(self, what: str, cause: Exception) -> None:
        super().__init__(f"{what} failed: {type(cause).__name__}: {cause}")
        self.__cause__ = cause


class UsageError(WorkerError):
    """A flag, an environment variable or a configuration key is wrong: one line on stderr, exit 2."""

    code, http_status, retriable = "USAGE", 400, False
