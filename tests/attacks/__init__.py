"""Clients and files that want to bring a worker down, as programs: each starts one, attacks it and reports.

    python -m tests.attacks.idle           1,024 connections that say nothing, renewed as they are cut
    python -m tests.attacks.dribble        the same with a byte of a header now and then
    python -m tests.attacks.half_pipelined half a request behind a running stream
    python -m tests.attacks.bodies         100 bodies of 2 MiB at once
    python -m tests.attacks.unread_stderr  a supervisor that does not read the worker's log
    python -m tests.attacks.header_bombs   GGUF headers of millions of keys or very many arrays

The tests that run with all others use smaller doses of the same. Times mean something on an idle machine only.
"""
