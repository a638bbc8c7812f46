"""Express: our sandbox service, E2B-compatible, with control plane and data plane on one listener.

`server` runs it, on a port or as a child on a unix socket; `app` is the service itself; `tree`,
`atomic` and `watch` are what it does to the files of one sandbox.
"""
