"""Commands: `run_command` in the foreground, and tasks in the background."""

from __future__ import annotations

from typing import Any

import anyio

from agent_sandbox import Sandbox
from agent_sandbox.errors import AgentSandboxError, CommandTimeoutError
from agent_sandbox.limits import (
    COMMAND_S,
    MAX_COMMAND_CHARS,
    MAX_COMMAND_S,
    MAX_OFFSET,
    MAX_RETAINED_TASKS,
    MAX_TTL_S,
    RETAIN_S,
)
from agent_sandbox.mcp_server import outputs, schemas
from agent_sandbox.mcp_server.arguments import (
    NoArguments,
    ReadTaskArguments,
    RunArguments,
    StartArguments,
    TaskArguments,
)
from agent_sandbox.mcp_server.tasks import Task
from agent_sandbox.mcp_server.tool import Call, Fields, make_tool
from agent_sandbox.mcp_server.tools import _words
from agent_sandbox.mcp_server.tools.listing import fitting
from agent_sandbox.models import CommandResult
from agent_sandbox.paths import canonical_path

SHOWN_CHARS = 200
"""How much of a command a listing shows."""

_SLACK_S = 15.0
"""How much later than the service we give up: it kills the command, and says what it wrote."""

_STOP_S = 5.0


async def run_command(call: Call, arguments: RunArguments) -> Fields:
    """Run a command to its end; a cancelled call kills its process group."""
    cwd = _directory(arguments.cwd)
    timeout_s = float(arguments.timeout_seconds or COMMAND_S)

    async def run(sandbox: Sandbox) -> CommandResult:
        return await sandbox.commands.run(
            arguments.command,
            cwd=cwd,
            timeout_s=timeout_s,
            max_output_bytes=outputs.OUTPUT_BYTES,
        )

    result = await call.registry.use(
        call.use,
        arguments.sandbox_id,
        run,
        CommandTimeoutError,
        timeout_s + _SLACK_S,
        repeatable=False,
    )
    return call.file_fields(exit_code=result.exit_code, **outputs.result_fields(result))


async def start_background_task(call: Call, arguments: StartArguments) -> Fields:
    """Start a command and return at once."""
    cwd = _directory(arguments.cwd)
    retain_s = (arguments.retain_seconds or RETAIN_S) if arguments.retain else None
    task_id = await call.state.tasks.start(
        call.use, arguments.sandbox_id, arguments.command, cwd=cwd, retain_s=retain_s
    )
    kept = {} if retain_s is None else {"retain_seconds": retain_s}
    return call.file_fields(task_id=task_id, retained=retain_s is not None, **kept)


async def get_background_task(call: Call, arguments: ReadTaskArguments) -> Fields:
    """Return the state of a task and its output from an offset on."""

    async def look(sandbox: Sandbox, tag: str) -> CommandResult:
        return await sandbox.commands.output(tag)

    result = await call.state.tasks.visit(call.use, arguments.task_id, look)
    growing = result.exit_code is None
    return {
        "success": True,
        "task_id": arguments.task_id,
        **_state(result.exit_code),
        **outputs.window(result, arguments.offset or 0, growing=growing),
        "sandbox_id": call.use.sandbox_id,
    }


async def list_background_tasks(call: Call, _arguments: NoArguments) -> Fields:
    """List the tasks that this caller may use."""
    entries = [_entry(task) for task in await call.state.tasks.visible(call.use)]
    kept = fitting(entries)
    return {"success": True, "tasks": kept, "omitted_tasks": len(entries) - len(kept)}


async def stop_background_task(call: Call, arguments: TaskArguments) -> Fields:
    """Kill a task with its process group and wait for its end."""

    async def stop(sandbox: Sandbox, tag: str) -> tuple[bool, Fields]:
        killed = await sandbox.commands.kill(tag)
        state: Fields = {"state": "running"}
        with anyio.move_on_after(_STOP_S):
            try:
                state = _state((await sandbox.commands.wait(tag)).exit_code)
            except AgentSandboxError:
                if not killed:
                    raise
                state = {"state": "ended"}  # and its sandbox with it
        return killed, state

    killed, state = await call.state.tasks.visit(call.use, arguments.task_id, stop)
    return {
        "success": True,
        "task_id": arguments.task_id,
        "stopped": killed,
        **state,
        "sandbox_id": call.use.sandbox_id,
    }


def _directory(cwd: str | None) -> str | None:
    return None if cwd is None else canonical_path(cwd, directory=True)


def _state(exit_code: int | None) -> dict[str, Any]:
    if exit_code is None:
        return {"state": "running"}
    return {"state": "ended", "exit_code": exit_code}


def _entry(task: Task) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "sandbox_id": task.sandbox_id,
        "command": task.command[:SHOWN_CHARS],
        "retained": task.retained,
        **_state(task.exit_code),
    }


_COMMAND = schemas.text(
    "A line for bash; it runs as a login shell (bash -l -c) in the sandbox.",
    minLength=1,
    maxLength=MAX_COMMAND_CHARS,
)
_CWD = schemas.file_path("The directory to run in; /home/user without it.")
_EXIT_CODE: schemas.Schema = {
    "type": "integer",
    "description": (
        "The exit status; a negative number is the signal that ended it. 127: bash found no such"
        " command."
    ),
}
_TASK_ID = schemas.text("The task's id.", minLength=1, maxLength=256)
_STATE: dict[str, schemas.Schema] = {
    "state": {"type": "string", "enum": ["running", "ended"]},
    "exit_code": {**_EXIT_CODE, "description": "Once it has ended: its exit status."},
}
_RETAINED = {"type": "boolean", "description": "It keeps its sandbox past the session."}
_ONE_TASK = {"task_id": _TASK_ID, **_STATE, "sandbox_id": schemas.SANDBOX_ID_OUT}

TOOLS = (
    make_tool(
        run_command,
        RunArguments,
        title="Run a command",
        description=(
            "Run a command in the sandbox and return when it has ended. An exit_code other than 0"
            " is a result, not an error: read stderr. At most"
            f" {outputs.OUTPUT_BYTES // 1024} KiB of each stream are returned, the first and the"
            " last part; redirect long output to a file and read that with read_file or"
            f" download_file. After timeout_seconds ({COMMAND_S} by default, at most"
            f" {MAX_COMMAND_S:,}) it is killed with its process group; the failure then has what"
            " it wrote. A call that is cancelled kills it, too. For servers and long work use"
            " start_background_task. There is no input: standard input is empty. All commands and"
            f" file tools of one sandbox see the same files. {_words.DEFAULT_SANDBOX}"
            f" {_words.ADOPTS}"
        ),
        input_schema=schemas.closed_input(
            {
                "command": _COMMAND,
                "cwd": _CWD,
                "timeout_seconds": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_COMMAND_S,
                    "description": f"Seconds after which it is killed; {COMMAND_S} without it.",
                },
                "sandbox_id": schemas.sandbox_choice(_words.ADOPTS),
            },
            required=("command",),
        ),
        output_schema=schemas.file_output(
            {"exit_code": _EXIT_CODE, **outputs.RESULT},
            optional=outputs.OPTIONAL,
            failure=schemas.failure_with(outputs.RESULT),
        ),
        destructive=True,
    ),
    make_tool(
        start_background_task,
        StartArguments,
        title="Start a background task",
        description=(
            "Start a command in the sandbox and return its task_id at once; it goes on after this"
            " call. Read its output with get_background_task, end it with stop_background_task."
            " Use it for servers and for work longer than a minute. A running task does not renew"
            " its sandbox, but each get_background_task does. It ends with its sandbox, thus with"
            " the session, unless retain is true: the sandbox then outlives the session, for"
            f" retain_seconds ({RETAIN_S:,} by default, at most {MAX_TTL_S:,}) and as long as the"
            " task runs, and is destroyed when the task ends after the session. At most"
            f" {MAX_RETAINED_TASKS} retained tasks run at once; kill_sandbox always ends them."
            f" {_words.DEFAULT_SANDBOX} {_words.ADOPTS}"
        ),
        input_schema=schemas.closed_input(
            {
                "command": _COMMAND,
                "cwd": _CWD,
                "retain": {
                    "type": "boolean",
                    "description": "Keep the sandbox past the end of the session for this task.",
                },
                "retain_seconds": {
                    **schemas.TTL_IN,
                    "description": (
                        "Only with retain: the sandbox lives at least this long from now."
                    ),
                },
                "sandbox_id": schemas.sandbox_choice(_words.ADOPTS),
            },
            required=("command",),
        ),
        output_schema=schemas.file_output(
            {
                "task_id": _TASK_ID,
                "retained": _RETAINED,
                "retain_seconds": {**schemas.TTL_IN, "description": "Only where retained."},
            },
            optional=("retain_seconds",),
        ),
        destructive=True,
    ),
    make_tool(
        get_background_task,
        ReadTaskArguments,
        title="Look at a background task",
        description=(
            "Tell whether a task runs, its exit_code once it has ended, and its output: standard"
            " output and standard error in one, as they came. Each call returns at most"
            f" {outputs.OUTPUT_BYTES // 1024} KiB from offset on (0 without it); call again with"
            " next_offset for what follows. Of long output the first and the last 128 KiB are"
            " kept: omitted_bytes says how much between offset and the beginning of output is"
            " gone. Output that is no UTF-8 stands exactly in output_base64. It renews the sandbox"
            " and makes nobody its owner. The last 16 ended tasks of a sandbox can be looked at."
        ),
        input_schema=schemas.closed_input(
            {
                "task_id": _TASK_ID,
                "offset": {
                    **outputs.COUNT,
                    "maximum": MAX_OFFSET,
                    "description": "Where to begin, in bytes; next_offset of the last call.",
                },
            },
            required=("task_id",),
        ),
        output_schema=schemas.output(
            {
                **_ONE_TASK,
                "output": schemas.text("Text; what is no UTF-8 is shown as U+FFFD."),
                "output_base64": schemas.text(
                    "Only where output is no UTF-8: the exact bytes from offset to next_offset."
                ),
                "offset": {**outputs.COUNT, "description": "Where output begins."},
                "next_offset": {**outputs.COUNT, "description": "Where the next call begins."},
                "total_bytes": {**outputs.COUNT, "description": "Everything that it has written."},
                "omitted_bytes": {
                    **outputs.COUNT,
                    "description": "Bytes from the offset asked for on that are not kept any more.",
                },
            },
            optional=("exit_code", "output_base64"),
        ),
        read_only=True,
        idempotent=True,
    ),
    make_tool(
        list_background_tasks,
        NoArguments,
        title="List background tasks",
        description=(
            "List the tasks in the sandboxes of this session, and retained tasks of earlier"
            " sessions, with their state; where the connection has no session, the tasks in all"
            " sandboxes that no session owns. Looking renews nothing and makes nobody an owner."
        ),
        input_schema=schemas.closed_input({}),
        output_schema=schemas.output(
            {
                "tasks": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "task_id": {"type": "string"},
                            "sandbox_id": {"type": "string"},
                            "command": schemas.text(f"Its first {SHOWN_CHARS} characters."),
                            "retained": _RETAINED,
                            **_STATE,
                        },
                        "required": ["task_id", "sandbox_id", "command", "retained", "state"],
                        "additionalProperties": False,
                    },
                },
                "omitted_tasks": {
                    **outputs.COUNT,
                    "description": "Tasks that did not fit into the answer.",
                },
            }
        ),
        read_only=True,
        idempotent=True,
    ),
    make_tool(
        stop_background_task,
        TaskArguments,
        title="Stop a background task",
        description=(
            "Kill a task with its process group and everything that it started, at once; its"
            " output can still be read. stopped is false where it had ended by itself. If its"
            " session is over and it was the last retained task, its sandbox is destroyed."
        ),
        input_schema=schemas.closed_input({"task_id": _TASK_ID}, required=("task_id",)),
        output_schema=schemas.output(
            {
                **_ONE_TASK,
                "stopped": {"type": "boolean", "description": "This call ended it."},
            },
            optional=("exit_code",),
        ),
        destructive=True,
        idempotent=True,
    ),
)
