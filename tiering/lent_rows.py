"""The end of a loan: rows that a tier has got to read or write are taken back when its coroutine has ended.

What the coroutine has left behind must not meet the next chunk in the row: a call on a thread that `asyncio.gather` or
a timeout has waited for no longer, or a task that has yet to copy what it fetches.
"""

from __future__ import annotations

import asyncio
import traceback
import weakref
from collections.abc import Sequence
from contextlib import suppress

__all__ = ["take_back", "take_back_after"]

_SECONDS_BETWEEN_LOOKS = 0.001


async def take_back(rows: Sequence[memoryview]) -> None:
    """Make the rows useless to whoever has kept them: using one raises ValueError from now on.

    A call that is using one at this moment, as `os.preadv` does, is waited for, for ever if need be.
    """
    for row in rows:
        while not _is_released(row):
            await _a_moment()


async def take_back_after(error: BaseException, rows: Sequence[memoryview]) -> None:
    """`take_back` after a coroutine that has raised, and may have left calls behind.

    Waits until slices of the rows and arrays over them are gone, too; those in the frames of ``error`` are dropped.
    Each row must come from an object of its own.
    """
    memory = [one for row in rows if (one := _memory_of(row)) is not None]
    await take_back(rows)
    _drop_frames(error)
    while any(one() is not None for one in memory):
        await _a_moment()


def _memory_of(row: memoryview) -> weakref.ref[object] | None:
    try:
        return weakref.ref(row.obj)
    except ValueError:  # released by the tier
        return None


async def _a_moment() -> None:
    with suppress(asyncio.CancelledError):  # a tier that cancels all tasks ends none of its calls by that
        await asyncio.sleep(_SECONDS_BETWEEN_LOOKS)


def _is_released(row: memoryview) -> bool:
    try:
        row.release()
    except BufferError:
        return False
    return True


def _drop_frames(error: BaseException) -> None:
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is not None and one.__traceback__ is not None:
            traceback.clear_frames(one.__traceback__)
            one.__traceback__ = None
            errors += one.__cause__, one.__context__
            errors += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
