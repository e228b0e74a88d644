"""The sentences that no object of the worker has: causes and remedies of error codes, and the occasions of log events.

tests/tools/reference fails if a code or an event is missing here, and if one is here that the worker does not have.
"""

from typing import Final, NamedTuple


class Meaning(NamedTuple):
    """A code in words."""

    cause: str
    remedy: str


REFUSALS: Final[dict[str, Meaning]] = {
    "INVALID_REQUEST": Meaning(
        "A value of the request breaks a rule, or X-Deadline cannot be read.",
        "Correct the fields that the message names. The message has each limit.",
    ),
    "UNAUTHORIZED": Meaning(
        "The worker has a token, and the request has none or another one.",
        "Send Authorization: Bearer with the worker's token (LLORCH_API_TOKEN).",
    ),
    "FORBIDDEN": Meaning(
        "The worker has no token, and a browser sent the request for a web page of another origin.",
        "Allow the page's origin with --cors-origin, or give the worker a token. A proxy in front must pass on Host.",
    ),
    "WRONG_HOST": Meaning(
        "The worker has no token, and the host of the request is not known to be this worker.",
        "If the name is yours, start the worker with --allowed-host and the name, or with a token.",
    ),
    "DUPLICATE_JOB": Meaning(
        "A job with this job_id is still in flight.", "Wait for its end, cancel it, or use another job_id."
    ),
    "DEADLINE_EXCEEDED": Meaning(
        "The time limit or X-Deadline passed before the stream began.",
        "Allow more time (--inference-timeout-sec, X-Deadline), or add workers.",
    ),
    "WORKER_BUSY": Meaning(
        "The queue is full, or too many connections are open.",
        "Try again after Retry-After seconds, or on another worker. Operators: add workers or raise --max-queue.",
    ),
    "WORKER_LOADING": Meaning(
        "The model is still loading, or the engine is being restarted.", "Try again after Retry-After seconds."
    ),
    "WORKER_DRAINING": Meaning("The worker is shutting down.", "Send the request to another worker."),
    "WORKER_UNHEALTHY": Meaning(
        "The worker is about to exit after a fatal error.",
        "Send the request to another worker. The last error line of the log has the reason.",
    ),
    "INTERNAL": Meaning(
        "An error in the worker itself.", "Try again. Report the error line of the log, which has a traceback."
    ),
    "INFERENCE_FAILED": Meaning(
        "The engine crashed twice while it ran this request.",
        "Do not repeat the request. Report the model and the prompt.",
    ),
}
"""The codes of refusals, which are classes of worker/errors.py."""

STREAM: Final[dict[str, Meaning]] = {
    "CANCELLED": Meaning(
        "The job was cancelled with POST /cancel, or the worker's shutdown ended it (retriable).",
        "After a shutdown, send the request to another worker.",
    ),
    "TIMEOUT": Meaning(
        "The time limit or X-Deadline passed during the job.", "Allow more time, or ask for fewer tokens."
    ),
    "VRAM_OOM": Meaning(
        "The job does not fit into the KV memory any more.", "Raise --ctx-size, or lower --parallel or max_tokens."
    ),
    "INVALID_REQUEST": Meaning(
        "The engine found after the stream had begun that the request cannot be run.", "Correct the request."
    ),
    "INFERENCE_FAILED": REFUSALS["INFERENCE_FAILED"],
    "ENGINE_RESTARTED": Meaning(
        "The engine crashed after the job had sent text.",
        "Send the request again: the worker replaces its engine by itself.",
    ),
}
"""The codes of a job that failed."""

API_ONLY: Final[dict[str, Meaning]] = {
    "invalid_value": Meaning("A value is out of range or does not go with another.", "Correct the field in param."),
    "invalid_type": Meaning("A field has another JSON type.", "Correct the field in param."),
    "missing_required_parameter": Meaning("A required field is missing.", "Add the field in param."),
    "unsupported_parameter": Meaning("The worker does not support this field.", "Remove the field in param."),
    "context_length_exceeded": Meaning(
        "Prompt and answer do not fit the context. The message has both numbers.",
        "Shorten the conversation, or start the worker with a larger --ctx-size.",
    ),
    "no_chat_template": Meaning(
        "The model file has no chat template.", "Start the worker with --chat-template, or use /v1/completions."
    ),
    "model_not_found": Meaning(
        "The request names another model, and --strict-model is on.", "Use the name in GET /v1/models."
    ),
    "invalid_api_key": REFUSALS["UNAUTHORIZED"],
    "unknown_url": Meaning("The worker has no such route.", "See Routes, or /docs on the worker."),
    "method_not_allowed": Meaning("The route has another method.", "Use a method of the Allow header."),
    "body_too_large": Meaning(
        "The body exceeds the limit in the message.", "Send less, or start the worker with a larger --max-prompt-chars."
    ),
    "unsupported_media_type": Meaning(
        "The body is not JSON by its content type.", "Send content-type: application/json, without an encoding."
    ),
}
"""The codes that only the routes of /v1 have."""

STARTUP: Final[dict[str, Meaning]] = {
    "WORKER_START_FAILED": Meaning("The start failed for another reason, which the message has.", "See the message."),
    "MODEL_NOT_FOUND": Meaning(
        "--model names no file, no model of the catalogue and no repository that could be found.",
        "Correct the name. llorch-worker models list shows the catalogue.",
    ),
    "MODEL_LOAD_FAILED": Meaning(
        "The file is not a GGUF that can be served, or llama.cpp refused it.",
        "Download the file again; llorch-worker inspect FILE shows what is wrong.",
    ),
    "PARITY_REPORT_REFUSED": Meaning(
        "The parity report cannot be used, or --require-parity finds that it does not cover what would run.",
        "Run parity run on this machine with these flags, or remove the flag.",
    ),
    "INSUFFICIENT_VRAM": Meaning(
        "The device, which may be the CPU, has too little memory.",
        "Use the --ctx-size or --gpu-layers that the message names.",
    ),
    "MODEL_DOWNLOAD_FAILED": Meaning(
        "The model could not be fetched or verified.", "Check the network, the disk and, for a gated model, HF_TOKEN."
    ),
    "BIND_FAILED": Meaning("The address or port is in use or not allowed.", "Use another --port, or free this one."),
    "CALLBACK_FAILED": Meaning(
        "The pool manager did not accept the ready callback.", "Check --callback-url, the token and the pool manager."
    ),
    "ENGINE_CRASHED": Meaning(
        "The engine crashed while it loaded, or five times in ten minutes.",
        "Read the end of the message, which is llama.cpp's own last line.",
    ),
    "INTERNAL": Meaning("A part of the worker ended that nothing replaces.", "Report the traceback in the log."),
    "USAGE": Meaning(
        "A flag, a variable or the config file is wrong.", "Correct what the line on standard error names."
    ),
}
"""The codes of a worker that does not start or cannot go on."""

OCCASIONS: Final[dict[str, str]] = {
    "startup": "The worker begins.",
    "listening": "The HTTP port is open.",
    "kv_events_listening": "KV events are published.",
    "model_load_start": "A download or a load of the model begins.",
    "model_load_progress": "A download or a load goes on.",
    "model_load_complete": "The model is loaded.",
    "memory_off_plan": "A device holds more or less memory than planned.",
    "amx_left_out": "The processor has Intel's AMX and llama.cpp was built without it.",
    "prefix_cache_off": "Prompts of this model are not kept.",
    "drafts_off": "No tokens are drafted with this model.",
    "prefix_cache_restored": "The engine took over prompts from an earlier engine or worker.",
    "prefix_cache_dropped": "Kept prompts were not trusted and were deleted.",
    "ready": "The worker accepts jobs.",
    "callback_sent": "The ready callback was sent, skipped or, after an engine's restart, refused.",
    "execute_start": "A job was accepted into the queue.",
    "execute_end": "A job ended, however it did.",
    "refused": "A request was refused.",
    "access": "An HTTP request was answered (--access-log).",
    "engine": "The engine or llama.cpp wrote a warning or an error.",
    "engine_restarted": "The engine crashed or hung and is replaced.",
    "residency_changed": "The model has left the GPU, or has come back.",
    "parity_differs": "The parity report does not cover exactly what runs.",
    "threads_changed": "Another process needs processors, or no longer does.",
    "no_effect": "A flag or variable has no effect here.",
    "log_lines_dropped": "Lines were dropped because standard error was not read.",
    "error": "An error; before exit code 1 it is the reason.",
    "shutdown": "The worker drains, or has ended.",
}
"""The log's events, which are worker/observe/log_lines.py's `LogEvent`."""
