"""OpenAI's chat completions: requests become jobs, and deltas of answers become messages and chunks."""
