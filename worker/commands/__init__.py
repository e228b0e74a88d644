"""The commands other than `serve`: generate, chat, models, inspect, launch and devices.

Each runs on the main thread of a short-lived process. A command may import any room; only `inspect` and `devices` load
llama.cpp, because they serve nothing that its crash would end.
"""
