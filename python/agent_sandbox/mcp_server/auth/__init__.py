"""Who may call over HTTP: static bearer tokens, and OAuth 2.1 access tokens.

The SDK's hooks are used where they are: its `TokenVerifier`, its `AuthenticatedUser` (by which it
binds sessions to their callers), and its route for the metadata of RFC 9728. The gate is ours: the
SDK's takes the first of two Authorization headers, answers a request without a token as if it had
shown a wrong one, and lets nobody be thrown out.
"""
