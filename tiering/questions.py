"""Which chunks a tier has, for tiers that answer later than they are asked.

Keys asked within one step go to the tier in one batch at its end. A key that is being asked is not asked again: later
requests share the answer. An answer belongs to the requests that waited for it and is gone when they have collected
it, so a new request always asks anew and no "not there" outlives the question. Nor does one overtake a store: an answer
counts only for the batch that asked for it. Requests without an id are one request here, whose end nobody tells: what
it does not collect in the step of the answer is dropped. Scheduler thread only.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiering.keys import OffloadKey

__all__ = ["Answer", "Questions"]

Answer = bool | str
"""Whether the tier has a chunk, or why it could not say."""

_UNNAMED = ""


class Questions:
    """The open questions to one tier, and the answers not collected yet."""

    def __init__(self, max_open: int = 2**17) -> None:
        """Ask for no more than ``max_open`` keys at a time: a tier may be silent for ever."""
        self._max_open = max_open
        self._unasked: dict[OffloadKey, None] = {}
        self._num_asked = 0
        self._waiting: dict[OffloadKey, set[str]] = {}
        self._abandoned: set[OffloadKey] = set()  # asked, but nobody waits for the answer any more
        self._answers: dict[str, dict[OffloadKey, Answer | None]] = {}
        self._batch_of: dict[OffloadKey, int] = {}
        self._num_batches = 0
        self._answered_unnamed: list[OffloadKey] = []

    @property
    def num_open(self) -> int:
        """Keys for whose answers somebody waits."""
        return len(self._waiting)

    def answer(self, key: OffloadKey, req_id: str) -> Answer | None:
        """Collect the answer for this request, or note the question and return None.

        With ``max_open`` questions open, a further one is not noted: the answer is that it could not be asked.
        """
        answers = self._answers.setdefault(req_id, {})
        if key in answers:
            return None if answers[key] is None else answers.pop(key)
        if key not in self._waiting:
            if key in self._abandoned:
                self._abandoned.remove(key)
            elif self._num_asked + len(self._unasked) >= self._max_open:
                return f"{self._max_open} questions have no answer yet, and no more are asked"
            else:
                self._unasked[key] = None
            self._waiting[key] = set()
        self._waiting[key].add(req_id)
        answers[key] = None
        return None

    def take_unasked(self) -> tuple[int, tuple[OffloadKey, ...]]:
        """End the step: return the keys noted in it, as a numbered batch, which is asked now."""
        unnamed = self._answers.get(_UNNAMED, {})
        for key in self._answered_unnamed:
            if unnamed.get(key) is not None:
                del unnamed[key]
        self._answered_unnamed.clear()
        keys = tuple(self._unasked)
        self._unasked.clear()
        self._num_asked += len(keys)
        self._num_batches += 1
        self._batch_of.update(dict.fromkeys(keys, self._num_batches))
        return self._num_batches, keys

    def settle_batch(self, batch: int, found: Mapping[OffloadKey, Answer]) -> None:
        """`settle` all that this batch asked, but for keys that were settled meanwhile, even if asked again."""
        self._num_asked -= len(found)
        self.settle({key: answer for key, answer in found.items() if self._batch_of.get(key) == batch})

    def settle(self, found: Mapping[OffloadKey, Answer]) -> None:
        """Hand answers to those who wait; answers that nobody waits for are dropped."""
        for key, answer in found.items():
            self._unasked.pop(key, None)
            self._batch_of.pop(key, None)
            self._abandoned.discard(key)
            for req_id in self._waiting.pop(key, ()):
                self._answers[req_id][key] = answer
                if req_id == _UNNAMED:
                    self._answered_unnamed.append(key)

    def forget(self, req_id: str) -> None:
        """Drop what a request has asked and not collected. A key is not asked again before its answer is there."""
        for key, answer in self._answers.pop(req_id, {}).items():
            if answer is None:
                self._waiting[key].remove(req_id)
                if not self._waiting[key]:
                    del self._waiting[key]
                    if key in self._unasked:
                        del self._unasked[key]
                    else:
                        self._abandoned.add(key)
