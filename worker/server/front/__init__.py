"""The front's state: admission, jobs, the current engine with its restarts and deaths, and the ready callback.

It runs on the front's event loop, never waits for the engine and never loads llama.cpp.
"""
