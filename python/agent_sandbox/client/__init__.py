"""The SDK: sandboxes and their files, async here and blocking in `agent_sandbox.sync`."""
