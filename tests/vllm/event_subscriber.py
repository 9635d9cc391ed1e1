"""Who listens to vLLM's KV events over ZMQ, and what he learns from them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import zmq

_END = (-1).to_bytes(8, "big", signed=True)
_MILLISECONDS = 60_000


@dataclass
class EventSubscriber:
    """Listens from before the engine starts.

    Attributes:
        settings: vLLM's ``kv_events_config``.
    """

    settings: dict[str, Any]
    _heard: zmq.Socket[bytes]
    _asked: zmq.Socket[bytes]

    def replayed(self) -> list[tuple[int, bytes]]:
        """Return all batches so far with their numbers, from the engine's buffer."""
        self._asked.send_multipart([b"", (0).to_bytes(8, "big")])
        batches = []
        while (frames := self._receive(self._asked))[-2] != _END:
            batches.append((int.from_bytes(frames[-2], "big"), frames[-1]))
        return batches

    def heard(self, last: int) -> list[tuple[int, bytes]]:
        """Return the batches that came in by themselves, up to one that must have come."""
        batches = [(-1, b"")]
        while batches[-1][0] < last:
            _, number, payload = self._receive(self._heard)
            batches.append((int.from_bytes(number, "big"), payload))
        return batches[1:]

    @staticmethod
    def _receive(socket: zmq.Socket[bytes]) -> list[bytes]:
        if not socket.poll(_MILLISECONDS):
            raise TimeoutError("no event has come for a minute")
        return socket.recv_multipart()


@contextmanager
def subscribed(folder: Path) -> Iterator[EventSubscriber]:
    """Listen on sockets in ``folder``."""
    endpoint, replay_endpoint = f"ipc://{folder}/events", f"ipc://{folder}/replay"
    settings = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": replay_endpoint,
    }
    with zmq.Context() as context, context.socket(zmq.SUB) as heard, context.socket(zmq.DEALER) as asked:
        for socket, place in ((heard, endpoint), (asked, replay_endpoint)):
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(place)
        heard.setsockopt(zmq.SUBSCRIBE, b"")
        yield EventSubscriber(settings, heard, asked)


def events_of(batches: Iterable[tuple[int, bytes]]) -> Iterator[dict[str, Any]]:
    """Yield the events in their order."""
    for _, payload in batches:
        _, events, *_ = msgspec.msgpack.decode(payload)
        yield from events


def known_content(events: Iterable[dict[str, Any]]) -> dict[str, set[int]]:
    """Return the hashes that somebody who follows the events takes to be in each of our tiers.

    Raises:
        AssertionError: a block came twice, or went without having come.
    """
    content: defaultdict[str, set[int]] = defaultdict(set)
    for event in events:
        if event.get("medium") not in {"CPU", "STORAGE"}:
            continue
        tier = content[event.get("ownership") or "cpu"]
        hashes = set(event["block_hashes"])
        if event["type"] == "BlockStored":
            assert not tier & hashes
            tier |= hashes
        else:
            assert hashes <= tier
            tier -= hashes
    return dict(content)


def event_hash(key: str) -> int:
    """Return the hash by which events name the chunk of a key given in hex."""
    return int.from_bytes(bytes.fromhex(key)[:-4], "big") & (2**64 - 1)
