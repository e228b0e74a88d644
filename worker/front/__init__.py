"""The front's state: admission, jobs, the current engine with its restarts and deaths, and the ready callback.

The room runs on the front's event loop, never waits for the engine and never loads llama.cpp. It may import protocol,
chat.parse, chat.deltas, wire, model, downloads, config, observe, host and errors.
"""
