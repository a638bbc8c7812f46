"""Where commands run: sandboxes of bubblewrap, their limits, and the way into them."""

from agent_sandbox.express.isolation.config import SandboxConfig
from agent_sandbox.express.isolation.limits import Limits
from agent_sandbox.express.isolation.process import Process
from agent_sandbox.express.isolation.rootfs import prepare_directory
from agent_sandbox.express.isolation.sandbox import RunningSandbox
from agent_sandbox.express.isolation.spawner import Spawner, find_bubblewrap
from agent_sandbox.express.isolation.usage import Usage, measure_usage

__all__ = [
    "Limits",
    "Process",
    "RunningSandbox",
    "SandboxConfig",
    "Spawner",
    "Usage",
    "find_bubblewrap",
    "measure_usage",
    "prepare_directory",
]
