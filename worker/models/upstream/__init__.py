"""Facts that are copied from llama.cpp: numbers, names of architectures, types and the wording of its log.

Each fact has its source in llama.cpp, and the test that compares it with the library that is installed. Pure data and
no ctypes, because the front reads some of it too. docs/upgrading-llama-cpp.md has the facts as a table.
"""
