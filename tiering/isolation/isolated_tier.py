"""A secondary tier in a process of its own, as the manager drives it."""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence
from typing import cast

from tiering.errors import ConfigError
from tiering.isolation.process_output import explicit_levels
from tiering.isolation.remote_tier import RemoteTier
from tiering.isolation.restart_delays import RestartDelays
from tiering.isolation.tier_host import HostStart
from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.naming import Namespace
from tiering.region import SharedOffloadRegion
from tiering.registry import installed_tiers
from tiering.tier import TierConfig, TierContext

__all__ = ["IsolatedTier"]


class IsolatedTier(TierWorker):
    """Drives a tier that runs in another process, over the rows of the same region.

    It is a `TierWorker` around a `RemoteTier`, so the boundary between threads is where it always is, and whatever
    that process does costs misses: jobs fail once it is gone, and it is started again.
    """

    def __init__(
        self,
        config: TierConfig,
        region: SharedOffloadRegion,
        namespace: Namespace,
        *,
        enable_events: bool = False,
        restart_delays: RestartDelays | None = None,
        reopen_seconds: float | None = None,
        drain_seconds: float = 20.0,
        close_timeout_seconds: float = 30.0,
    ) -> None:
        """Start the process and open the tier in it; waits until it is open.

        Args:
            config: the tier's configuration.
            region: whose rows it reads and writes; its file must still have its name.
            namespace: of what it stores.
            enable_events: whether somebody will `take_events`.
            restart_delays: when it is started again after it has ended.
            reopen_seconds: how long a process that was started again may take to open the tier before it is killed.
                Default: ten times as long as the first one took, and a minute at least.
            drain_seconds: how long `shutdown` waits for its jobs before it is killed.
            close_timeout_seconds: how long `shutdown` waits in all.

        Raises:
            ConfigError: the tier is not installed, so another process would not find it.
            PermanentTierError: what opening it raised there, or how the process ended. It is gone.
            OSError: the region's file cannot be opened.
        """
        name = config.name or config.type
        _check_installed(config.type, name)
        start = HostStart(config, name, namespace, region.layout.num_rows, explicit_levels())
        limits = config.limits
        patience = 2 * max(limits.lookup_timeout, limits.load_timeout, limits.store_timeout)
        self._drain_seconds = drain_seconds
        self._rows_fd = os.open(region.mmap_path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)

        def make_tier(context: TierContext) -> RemoteTier:
            self._remote = RemoteTier(
                start,
                context,
                self._rows_fd,
                restart_delays or RestartDelays(),
                patience_seconds=patience,
                reopen_seconds=reopen_seconds,
            )
            return self._remote

        try:
            super().__init__(
                make_tier,
                JobLoop(f"tiering-loop-{name}"),
                _row_numbers,
                name=name,
                row_bytes=namespace.row_bytes,
                namespace=namespace,
                enable_events=enable_events,
                limits=limits,
                breaker=config.breaker,
                close_timeout_seconds=close_timeout_seconds,
            )
        except BaseException:
            os.close(self._rows_fd)
            raise
        self.tier_type = config.type
        # Before the region, which only the last process to leave removes.
        atexit.register(self._kill_at_exit)

    @property
    def pid(self) -> int:
        """The process id; that of the last process while there is none."""
        return self._remote.pid

    @property
    def num_ends(self) -> int:
        """How often the process has ended by itself."""
        return self._remote.num_ends

    def shutdown(self) -> None:
        """Wait for what runs, close the tier, and wait until its process is gone; after a while, kill it.

        Raises:
            TimeoutError: the process is not gone after ``close_timeout_seconds``, although it was killed. It may
                still touch its rows.
            TierError: what closing the tier raised. The process is gone.
        """
        if self._is_ours:
            self._loop.post(lambda: self._remote.begin_end(self._drain_seconds))
        try:
            super().shutdown()
        finally:
            if self._has_ended:
                atexit.unregister(self._kill_at_exit)
                os.close(self._rows_fd)

    async def _run_take_back(self, rows: Sequence[memoryview], error: BaseException | None = None) -> None:
        """Nothing was lent here: the other process takes back what it has lent."""

    def _kill_at_exit(self) -> None:
        if self._is_ours:
            self._remote.kill_for_good()


def _check_installed(tier_type: str, name: str) -> None:
    installed = sorted({plugin.name for plugin in installed_tiers()})
    if tier_type not in installed:
        raise ConfigError(
            f"tier {name!r}: isolation: 'process': the tier type {tier_type!r} is registered by code, which a process "
            f"of its own does not run; allowed: thread, or an installed tier: {', '.join(installed) or 'none'}"
        )


def _row_numbers(rows: Sequence[int]) -> Sequence[memoryview]:
    """Stand in for the rows: a `RemoteTier` passes numbers on."""
    return cast(Sequence[memoryview], rows)
