"""The E2B-compatible wire, shared by the service and the client: messages, headers, framing."""
