"""The common part of all APIs: fields and their rules, conversations, tools, errors, and the reading of answers."""
