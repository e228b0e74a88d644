"""Conversations to prompts, by the model's own chat template. The intake thread renders; the front never does."""
