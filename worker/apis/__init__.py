"""The APIs: a request's bytes become jobs, and the events of jobs become answers, chunks and errors.

A protocol is a folder, which touches none of the others. All of it runs on the front's event loop, reads large bodies
on a thread, and knows no HTTP framework. It is pure, except for ids and seeds that it draws.
"""
