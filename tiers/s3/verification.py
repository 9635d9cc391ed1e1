"""Is what was read the chunk that it was read for?"""

from __future__ import annotations

from dataclasses import dataclass

from tiering.keys import OffloadKey
from tiers.s3.landing import Landing
from tiers.s3.object_format import parse_header

__all__ = ["Damage", "damage_in"]


@dataclass(frozen=True, slots=True)
class Damage:
    """Why an object is no hit. Two readings of one damaged object give equal values.

    Attributes:
        reason: what was found.
        is_ours: whether its header proves that we, or an engine like us, wrote it under this name.
    """

    reason: str
    is_ours: bool


def damage_in(landing: Landing, fingerprint: bytes, key: OffloadKey) -> Damage | None:
    """Return what is wrong with what has landed, and is settled; None if nothing is."""
    header = parse_header(landing.header)
    if header is None:
        return Damage("it has no header of ours", is_ours=False)
    if header.fingerprint != fingerprint:
        return Damage(f"it is of the namespace {header.fingerprint.hex()}", is_ours=False)
    if header.key != key:
        return Damage(f"it is the chunk {header.key.hex()}", is_ours=False)
    checksum = landing.checksum
    if header.checksum != checksum or header.row_bytes != landing.row.nbytes:
        return Damage(f"its row has the checksum {checksum:016x}, not {header.checksum:016x}", is_ours=True)
    return None
