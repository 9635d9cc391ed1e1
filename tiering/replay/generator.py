"""A deterministic trace in the shape of real ones, with integers only: the same on every machine.

Three kinds of session share the time line: chats behind system prompts of skewed popularity, agents with long tool
descriptions and short pauses, and documents some of which are asked about again. The prompt of a turn is the session's
full blocks and a partly filled last one, which the next turn replaces: in real traces, too, more than half of the
blocks are used once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from tiering.replay.trace import TraceRequest

__all__ = ["TOKENS_PER_BLOCK", "generate_trace"]

TOKENS_PER_BLOCK = 512

_MASK = 2**64 - 1


class _Random:
    """xorshift64*: Marsaglia's xorshift with a multiplied output (Vigna, 2016)."""

    def __init__(self, seed: int) -> None:
        self._state = (seed * 0x9E3779B97F4A7C15 + 1) & _MASK

    def below(self, bound: int) -> int:
        """Return an integer in 0..bound-1."""
        x = self._state
        x ^= x >> 12
        x = (x ^ (x << 25)) & _MASK
        x ^= x >> 27
        self._state = x
        return ((x * 0x2545F4914F6CDD1D & _MASK) >> 33) % bound


class _Blocks:
    """Hands out block ids that were never used before."""

    def __init__(self) -> None:
        self._next_id = 0

    def new(self, count: int) -> list[int]:
        first, self._next_id = self._next_id, self._next_id + count
        return list(range(first, self._next_id))


@dataclass(slots=True)
class _Session:
    kind: str
    blocks: list[int]
    turns_left: int
    growth: int


class _Generator:
    def __init__(self, seed: int) -> None:
        self._random = _Random(seed)
        self._ids = _Blocks()
        self._root = self._ids.new(1)  # nearly every prompt begins with it
        self._system_prompts = [self._root + self._ids.new(1 + self._random.below(6)) for _ in range(40)]
        self._tools = [self._ids.new(10 + self._random.below(11)) for _ in range(3)]

    def requests(self) -> Iterator[TraceRequest]:
        below = self._random.below
        queue: list[tuple[int, int, _Session]] = []
        arrival = order = 0
        while True:
            while not queue or queue[0][0] >= arrival:
                heapq.heappush(queue, (arrival, order, self._new_session()))
                order += 1
                arrival += below(3200)
            now, _, session = heapq.heappop(queue)
            yield self._turn(now, session)
            session.turns_left -= 1
            if session.turns_left > 0:
                heapq.heappush(queue, (now + self._pause(session), order, session))
                order += 1

    def _new_session(self) -> _Session:
        below = self._random.below
        kind = below(100)
        if kind < 62:
            prompt = self._system_prompts[below(1 + below(40))]
            return _Session("chat", list(prompt), 1 + below(1 + below(12)), 1 + below(6))
        if kind < 76:
            return _Session("agent", list(self._tools[below(1 + below(3))]), 2 + below(16), 1 + below(4))
        turns = 1 + (below(3) if below(10) < 4 else 0)
        return _Session("document", list(self._root), turns, 10 + below(1 + below(120)))

    def _turn(self, now: int, session: _Session) -> TraceRequest:
        session.blocks += self._ids.new(session.growth)
        partial = self._ids.new(1)
        tokens_in_partial = 1 + self._random.below(TOKENS_PER_BLOCK - 1)
        return TraceRequest(
            timestamp=now,
            input_length=TOKENS_PER_BLOCK * len(session.blocks) + tokens_in_partial,
            output_length=3 + self._random.below(700),
            hash_ids=tuple(session.blocks + partial),
        )

    def _pause(self, session: _Session) -> int:
        below = self._random.below
        if session.kind == "chat":
            pause = 5000 + below(60000) * (1 + 9 * (below(10) == 0))
            session.growth = 1 + below(5)
        elif session.kind == "agent":
            pause = 1000 + below(20000)
            session.growth = 1 + below(6)
        else:
            pause = 20000 + below(900000)
            session.growth = below(2)
        return pause


def generate_trace(seed: int = 1) -> Iterator[TraceRequest]:
    """Yield requests without end, in the order of their arrival."""
    return _Generator(seed).requests()
