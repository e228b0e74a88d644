"""Limits and enumerations of llama.cpp's headers and sources, by number."""

MAX_SEQ_IDS = 256
"""LLAMA_MAX_SEQ (llama-cparams.h): how many sequence ids there are for slots and for what the backend needs beside
them."""
