"""All that passes between the front and the engine: messages, their framing, and the types that both sides share.

Any thread of either process uses it.
"""
