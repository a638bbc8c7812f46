"""HTTP/1.1 as our servers read it: strict heads, deadlines, and a close that is heard."""

from agent_sandbox.http1.protocol import ACCEPTS, StrictHTTPProtocol

__all__ = ["ACCEPTS", "StrictHTTPProtocol"]
