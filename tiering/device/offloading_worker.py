"""The worker's switchboard: one handler per pair of media (seed, chapter 9.2)."""

from __future__ import annotations

import logging
from collections.abc import Set

from tiering.device.offloading_handler import OffloadingHandler, TransferResult
from tiering.transfer_specs import LoadStoreSpec, TransferSpec, TransferType

__all__ = ["OffloadingWorker"]

logger = logging.getLogger(__name__)


class OffloadingWorker:
    """Sends each transfer to the handler of its media and collects the results. For the worker's main thread only."""

    def __init__(self) -> None:
        self._handlers: dict[TransferType, OffloadingHandler] = {}

    def register_handler(
        self, src_cls: type[LoadStoreSpec], dst_cls: type[LoadStoreSpec], handler: OffloadingHandler
    ) -> None:
        """Let ``handler`` serve transfers from ``src_cls`` to ``dst_cls``.

        Raises:
            ValueError: that pair has a handler already.
        """
        transfer_type = (src_cls.medium(), dst_cls.medium())
        if transfer_type in self._handlers:
            raise ValueError(f"transfers {transfer_type} already have a handler")
        self._handlers[transfer_type] = handler

    def transfer_async(self, job_id: int, spec: TransferSpec) -> bool:
        """Start a transfer and return at once.

        Returns:
            False where it was not started, for whatever reason; the reason is logged, and no result will come.
        """
        src, dst = spec
        transfer_type = (src.medium(), dst.medium())
        handler = self._handlers.get(transfer_type)
        if handler is None:
            logger.warning("transfer %d: nothing moves %s; known: %s", job_id, transfer_type, sorted(self._handlers))
            return False
        try:
            started = handler.transfer_async(job_id, spec)
        except Exception as error:
            logger.warning("transfer %d %s was refused: %r", job_id, transfer_type, error)
            return False
        if not started:
            logger.warning("transfer %d %s was refused", job_id, transfer_type)
        return started

    def get_finished(self) -> list[TransferResult]:
        """Return the results of all handlers since the last call."""
        return [result for handler in self._distinct_handlers() for result in handler.get_finished()]

    def wait(self, job_ids: Set[int]) -> None:
        """Block until each of these transfers has ended; ids that are not in progress count as ended."""
        for handler in self._distinct_handlers():
            handler.wait(job_ids)

    def shutdown(self) -> None:
        """Block until all transfers have ended, then shut every handler down."""
        for handler in self._distinct_handlers():
            handler.shutdown()

    def _distinct_handlers(self) -> list[OffloadingHandler]:
        return list(dict.fromkeys(self._handlers.values()))
