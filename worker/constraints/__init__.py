"""Grammars, JSON schemas, regular expressions and calls of tools: compiled and followed by llguidance.

Only this room imports that library. The intake thread compiles a constraint, and the step thread follows it.
"""
