"""What the functions and classes of the byte core take, and how it is read.

Types are looked at through `type()`, and subclasses are reduced to the exact type first, so that
no method of the caller's can run in between.
"""

from __future__ import annotations

from typing import Final, TypeGuard, cast

Octets = bytes | bytearray | memoryview

_OVER_U64: Final = 1 << 64
_BYTE_FORMATS: Final = ("B", "b", "c")


def u64(value: object, name: str, wanted: str) -> int:
    """Return an exact `int` from 0 to 2**64 - 1, else raise; `bool` is none."""
    if not _is_int(value) or type(value) is bool:
        raise TypeError(f"{name} must be {wanted}")
    number = int.__index__(value)
    if number < 0:
        raise ValueError(f"{name} must not be negative")
    if number >= _OVER_U64:
        raise OverflowError(f"{name} must be below 2**64")
    return number


# isinstance() believes an object's __class__, and the native module does not.


def _is_int(value: object) -> TypeGuard[int]:
    return issubclass(type(value), int)


def is_str(value: object) -> TypeGuard[str]:
    """Tell whether it is a `str` or of a subclass."""
    return issubclass(type(value), str)


def _is_bytes(value: object) -> TypeGuard[bytes]:
    return issubclass(type(value), bytes)


def _is_bytearray(value: object) -> TypeGuard[bytearray]:
    return issubclass(type(value), bytearray)


def _is_memoryview(value: object) -> TypeGuard[memoryview]:
    return type(value) is memoryview


def size_of(data: object, name: str, *, or_str: bool = False) -> int:
    """Return the size in bytes of a buffer of a type that is taken, else raise."""
    if _is_bytes(data):
        return bytes.__len__(data)
    if _is_bytearray(data):
        return bytearray.__len__(data)
    if _is_memoryview(data):
        contiguous = data.c_contiguous or not data.nbytes  # no bytes have no gaps
        if not contiguous or data.format not in _BYTE_FORMATS:
            raise TypeError("a memoryview must be C-contiguous and of single bytes")
        return data.nbytes
    kinds = "str, bytes, bytearray or memoryview" if or_str else "bytes, bytearray or memoryview"
    raise TypeError(f"{name} must be {kinds}")


def snapshot(data: Octets) -> bytes:
    """Return `data`, whose type was checked, as exact `bytes`; only exact `bytes` are shared."""
    if type(data) is bytes:
        return data
    if _is_memoryview(data):
        return data.tobytes()
    if _is_bytes(data):
        return bytes.__getitem__(data, slice(None))
    if type(data) is bytearray:
        return bytes(data)
    return bytes(bytearray.__getitem__(cast("bytearray", data), slice(None)))
