"""The wire of OpenAI, vLLM and llama-server: requests become jobs, and events become answers, chunks and errors.

The room runs on the front's event loop, and reads large bodies on a thread. It knows no HTTP framework. It may import
protocol, chat.parse, chat.deltas, wire and errors.
"""
