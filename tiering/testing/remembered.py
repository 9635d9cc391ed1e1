"""How much an object remembers: the sizes of all containers inside, to find what grows."""

from __future__ import annotations

from collections.abc import Sized

__all__ = ["container_sizes"]

_MOST_PARTS = 10


def container_sizes(root: object, *modules: str) -> dict[str, int]:
    """Return the sizes of all containers that can be reached from ``root``, by path.

    Goes into objects of classes from ``modules`` and ``tiering``, and into lists and tuples of less than ten parts.
    """
    found: dict[str, int] = {}
    seen: set[int] = set()
    pending: list[tuple[str, object]] = [("", root)]
    while pending:
        path, thing = pending.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Sized) and not isinstance(thing, str | bytes):
            found[path] = len(thing)
        if isinstance(thing, list | tuple) and len(thing) < _MOST_PARTS:
            pending += [(f"{path}[{place}]", part) for place, part in enumerate(thing)]
        if type(thing).__module__.partition(".")[0] in ("tiering", *modules):
            names = [slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ())]
            names += list(getattr(thing, "__dict__", ()))
            pending += [(f"{path}.{name}", getattr(thing, name)) for name in names if hasattr(thing, name)]
    return found
