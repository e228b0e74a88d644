"""HTTP: routes, connections and their limits, streams and whole answers, and the pages at / and /docs.

Only this room has Litestar. It runs on the front's event loop, and reads large bodies on a thread.
"""
