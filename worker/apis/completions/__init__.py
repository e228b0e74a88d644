"""OpenAI's completions: requests become jobs, and text becomes choices and chunks."""
