"""The text of an answer to content, reasoning and calls. The front reads answers on its event loop."""
