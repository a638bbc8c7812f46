"""The E2B-compatible wire, shared by both sides: Connect in JSON, and the messages."""
