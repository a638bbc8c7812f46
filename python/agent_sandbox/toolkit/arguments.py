"""Arguments of tools, validated once and strictly."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from agent_sandbox.errors import ArgumentError


class Arguments(BaseModel):
    """Base of all: no coercion, no unknown names; an optional argument is absent, never null."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _no_null(cls, values: Any) -> Any:
        if isinstance(values, dict) and None in values.values():
            raise ValueError
        return values


class NoArguments(Arguments):
    """For tools without arguments."""


A = TypeVar("A", bound=Arguments)


def parse(kind: type[A], arguments: dict[str, Any]) -> A:
    """Return the validated arguments.

    Raises:
        ArgumentError: E2001, without a word of the input.
    """
    try:
        return kind.model_validate(arguments)
    except ValidationError:
        raise ArgumentError from None
