"""The root of the tree, and the table that every error enters by being defined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

Category = Literal[
    "invalid_input",
    "size_limit",
    "not_found",
    "permission_denied",
    "sandbox_not_found",
    "unsupported",
    "timeout",
    "file_transfer",
]
"""The eight failure categories that MCP tools report."""

CATEGORIES: tuple[Category, ...] = get_args(Category)

EXIT_STATUS: dict[Category, int] = {
    "invalid_input": 2,
    "not_found": 3,
    "permission_denied": 4,
    "size_limit": 5,
    "sandbox_not_found": 6,
    "unsupported": 7,
    "timeout": 8,
    "file_transfer": 9,
}
"""Exit status of the `agent-sandbox` command for each category."""


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One row of the error table: how an error looks at every edge."""

    code: str
    category: Category
    http_status: int
    exit_status: int
    retry_may_help: bool
    text: str


TABLE: dict[type[AgentSandboxError], ErrorRow] = {}
"""Every public error with its row. `docs/errors.md` is tested against it."""


class AgentSandboxError(Exception):
    """The base of every error that this package raises on purpose.

    Attributes:
        code: Stable identifier (`E4003`); never reused for another meaning.
        category: One of `CATEGORIES`, as MCP tools report it.
        text: The fixed message; `str(error)` is the same text.
        http_status: The status our own services answer with.
        retry_may_help: True where the same call may succeed later.
    """

    code: ClassVar[str]
    category: ClassVar[Category]
    text: ClassVar[str]
    http_status: ClassVar[int]
    retry_may_help: ClassVar[bool]

    def __init_subclass__(
        cls, *, code: str, category: Category, http: int, text: str, retry: bool = False
    ) -> None:
        super().__init_subclass__()
        cls._enter(code, category, http, text, retry)

    @classmethod
    def _enter(cls, code: str, category: Category, http: int, text: str, retry: bool) -> None:
        cls.code, cls.category, cls.text = code, category, text
        cls.http_status, cls.retry_may_help = http, retry
        TABLE[cls] = ErrorRow(code, category, http, EXIT_STATUS[category], retry, text)

    def __init__(self, **details: Any) -> None:
        super().__init__(self.text)
        self.__dict__.update(details)

    def __reduce__(self) -> tuple[Any, ...]:
        # Rebuilt from its attributes: the default would call __init__ with the message.
        return _rebuild, (type(self), dict(self.__dict__))


def _rebuild(cls: type[AgentSandboxError], details: dict[str, Any]) -> AgentSandboxError:
    error = cls.__new__(cls)
    AgentSandboxError.__init__(error, **details)
    return error


AgentSandboxError._enter(
    "E1000", "file_transfer", 500, "An internal error stopped the operation.", False
)
