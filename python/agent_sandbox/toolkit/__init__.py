"""What the MCP tools of this package have in common, wherever they are mounted.

Strict arguments, closed schemas, failures with fixed texts, and results that hold each byte once.
"""
