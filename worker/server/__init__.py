"""The server: a process from bind to exit, and the engine process beside it."""
