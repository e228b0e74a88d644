"""The model's chat template: a conversation becomes the text of a prompt, and an answer's text becomes content,
reasoning and calls.

The intake thread renders; the front reads answers and never renders. The room may import wire and errors.
"""
