"""The wire of Anthropic: requests become jobs, and deltas of answers become blocks and events.

The room runs on the front's event loop, and reads large bodies on a thread. It knows no HTTP framework. It may import
openai, protocol, chat.parse, chat.deltas, wire and errors.
"""
