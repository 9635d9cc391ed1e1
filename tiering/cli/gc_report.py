"""What ``tiering gc objects`` says at its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import typer

from tiering.cli.output import print_table
from tiering.inventory import StoredKind, StoredObject
from tiering.quantities import format_bytes

__all__ = ["GcReport"]


class GcReport:
    """What was found in a tier's store, and what of it was removed.

    Attributes:
        num_failed: objects that could not be removed.
    """

    def __init__(self, tier: str, dry_run: bool, found: Sequence[StoredObject]) -> None:
        self.num_failed = 0
        self._tier = tier
        self._dry_run = dry_run
        self._found = found
        self._removed: list[StoredObject] = []

    def note(self, objects: Sequence[StoredObject], is_gone: Sequence[bool]) -> None:
        """Add what became of some objects that were to be removed; in a dry run, what would have."""
        self._removed += [stored for stored, gone in zip(objects, is_gone, strict=True) if gone]
        self.num_failed += list(is_gone).count(False)

    def as_dict(self) -> dict[str, object]:
        """Return everything as plain data; numbers of chunks and bytes are of before the removal."""
        return {
            "tier": self._tier,
            "dry_run": self._dry_run,
            "namespaces": [
                {
                    "namespace": namespace,
                    **_counted(_chunks(self._found, namespace), ""),
                    **_counted(_chunks(self._removed, namespace), "removed_"),
                }
                for namespace in sorted({stored.namespace for stored in self._found})
            ],
            "removed_leftovers": _number(self._removed, StoredKind.LEFTOVER),
            "removed_descriptions": _number(self._removed, StoredKind.DESCRIPTION),
            "failed": self.num_failed,
        }

    def print(self) -> None:
        """Print a table of the namespaces, and one line that says what was done."""
        namespaces = sorted({stored.namespace for stored in self._found})
        if namespaces:
            print_table(("namespace", "chunks", "size", "removed", "freed"), [self._row(name) for name in namespaces])
        chunks, removed = _chunks(self._found), _chunks(self._removed)
        sentence = (
            f"{'would remove' if self._dry_run else 'removed'} {len(removed)} of {len(chunks)} chunks,"
            f" {_size(removed)} of {_size(chunks)}; {_number(self._removed, StoredKind.LEFTOVER)} unfinished writes;"
            f" {_number(self._removed, StoredKind.DESCRIPTION)} descriptions of empty namespaces"
        )
        failures = f"; {self.num_failed} objects could not be removed" if self.num_failed else ""
        typer.echo(f"tier {self._tier}: {sentence}{failures}")

    def _row(self, namespace: str) -> dict[str, str]:
        chunks, removed = _chunks(self._found, namespace), _chunks(self._removed, namespace)
        return {
            "namespace": namespace,
            "chunks": str(len(chunks)),
            "size": _size(chunks),
            "removed": str(len(removed)),
            "freed": _size(removed),
        }


def _chunks(objects: Iterable[StoredObject], namespace: str | None = None) -> list[StoredObject]:
    return [stored for stored in objects if stored.kind is StoredKind.CHUNK and namespace in {None, stored.namespace}]


def _number(objects: Iterable[StoredObject], kind: StoredKind) -> int:
    return sum(stored.kind is kind for stored in objects)


def _size(objects: Iterable[StoredObject]) -> str:
    return format_bytes(sum(stored.num_bytes for stored in objects))


def _counted(objects: Sequence[StoredObject], what: str) -> dict[str, int]:
    return {f"{what}chunks": len(objects), f"{what}bytes": sum(stored.num_bytes for stored in objects)}
