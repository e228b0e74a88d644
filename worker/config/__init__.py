"""Every setting and its sources: flag, environment, file and default; and the engine's part as its first frame.

The main thread reads the settings before anything else runs, and they are frozen then. The engine process reads
engine_settings.py, which imports nothing heavy.
"""
