"""OpenAI's Responses: requests become jobs, and deltas of answers become items and events."""
