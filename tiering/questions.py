"""Which chunks a tier has, for tiers that answer later than they are asked.

Keys asked within one step go to the tier in one batch at its end. A key that is being asked is not asked again: later
requests share the answer. An answer belongs to the requests that waited for it and is gone when they have collected
it, so a new request always asks anew and no "not there" outlives the question. Nor does one overtake a store: an answer
counts only for the batch that asked for it. Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiering.keys import OffloadKey

__all__ = ["Answer", "Questions"]

Answer = bool | str
"""Whether the tier has a chunk, or why it could not say."""


class Questions:
    """The open questions to one tier, and the answers not collected yet."""

    def __init__(self) -> None:
        self._unasked: dict[OffloadKey, None] = {}
        self._waiting: dict[OffloadKey, list[str]] = {}
        self._answers: dict[str, dict[OffloadKey, Answer | None]] = {}
        self._batch_of: dict[OffloadKey, int] = {}
        self._num_batches = 0

    @property
    def num_open(self) -> int:
        """Keys that somebody waits for an answer to."""
        return len(self._waiting)

    def answer(self, key: OffloadKey, req_id: str) -> Answer | None:
        """Collect the answer for this request, or note the question and return None."""
        answers = self._answers.setdefault(req_id, {})
        if key not in answers:
            answers[key] = None
            if key not in self._waiting:
                self._waiting[key] = []
                self._unasked[key] = None
            self._waiting[key].append(req_id)
        elif answers[key] is not None:
            return answers.pop(key)
        return None

    def take_unasked(self) -> tuple[int, tuple[OffloadKey, ...]]:
        """Return the keys noted since the last call, as a numbered batch: now they are asked."""
        keys = tuple(self._unasked)
        self._unasked.clear()
        self._num_batches += 1
        self._batch_of.update(dict.fromkeys(keys, self._num_batches))
        return self._num_batches, keys

    def settle_batch(self, batch: int, found: Mapping[OffloadKey, Answer]) -> None:
        """`settle` what this batch asked, but for keys that were settled meanwhile, even if they were asked again."""
        self.settle({key: answer for key, answer in found.items() if self._batch_of.get(key) == batch})

    def settle(self, found: Mapping[OffloadKey, Answer]) -> None:
        """Hand answers to those who wait; answers that nobody waits for are dropped."""
        for key, answer in found.items():
            self._unasked.pop(key, None)
            self._batch_of.pop(key, None)
            for req_id in self._waiting.pop(key, ()):
                if req_id in self._answers:
                    self._answers[req_id][key] = answer

    def forget(self, req_id: str) -> None:
        """Drop what a request has asked and not collected."""
        for key, answer in self._answers.pop(req_id, {}).items():
            if answer is None and key in self._unasked:
                self._waiting[key].remove(req_id)
                if not self._waiting[key]:
                    del self._waiting[key], self._unasked[key]
