"""Draft tokens: where they come from, how many pay, and how often they were right. Pure; runs on the step thread."""
