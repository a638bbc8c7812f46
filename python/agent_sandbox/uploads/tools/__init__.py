"""The MCP tools of upload sessions, to hand to any server: `MCPServer(tools=[*upload_tools(...)])`.

They validate strictly, answer with closed schemas and fixed texts, and know nothing of the server
that they run in but what it gives them: a service, a principal, and what is done with a file.
"""

from agent_sandbox.uploads.tools.backend import Backend, Context, SandboxFiles
from agent_sandbox.uploads.tools.offer import backend_tools, upload_tools
from agent_sandbox.uploads.tools.tool import UploadTool

__all__ = ["Backend", "Context", "SandboxFiles", "UploadTool", "backend_tools", "upload_tools"]
