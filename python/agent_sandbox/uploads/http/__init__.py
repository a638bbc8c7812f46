"""The HTTP side of upload sessions: routes, the page for people, and a strict protocol."""

from agent_sandbox.http1 import StrictHTTPProtocol
from agent_sandbox.uploads.http.routes import upload_routes, uvicorn_settings

__all__ = ["StrictHTTPProtocol", "upload_routes", "uvicorn_settings"]
