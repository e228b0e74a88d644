"""The description that a handler carries for the OpenAPI document."""

from litestar.handlers import HTTPRouteHandler

from worker.protocol.operations import Operation

_OPERATION = "operation"


def described(operation: Operation) -> dict[str, Operation]:
    """The `opt` of a handler whose route the document describes."""
    return {_OPERATION: operation}


def operation_of(handler: HTTPRouteHandler) -> Operation:
    """Raises: KeyError for a handler that is not `described`."""
    operation: Operation = handler.opt[_OPERATION]
    return operation
