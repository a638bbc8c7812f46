"""The HTTP side of upload sessions: routes, the page for people, and a strict protocol."""
