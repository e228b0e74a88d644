"""The pool manager's wire: requests and their rules, events, bodies, headers and the OpenAPI document.

The room runs on the front's event loop, and reads large bodies on a thread. It knows no HTTP framework. It may import
wire and errors.
"""
