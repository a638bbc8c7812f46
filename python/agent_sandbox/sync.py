"""The SDK, blocking: the same surface as `agent_sandbox`, without `await`.

::

    from agent_sandbox.sync import Sandbox

    with Sandbox.create() as sandbox:
        sandbox.files.write("/tmp/hello.txt", "hello")
        print(sandbox.files.read_text("/tmp/hello.txt"))
"""

from __future__ import annotations

from agent_sandbox.client._streams import Stream
from agent_sandbox.client.blocking_files import Files
from agent_sandbox.client.blocking_sandbox import Sandbox, SandboxClient

__all__ = ["Files", "Sandbox", "SandboxClient", "Stream"]
