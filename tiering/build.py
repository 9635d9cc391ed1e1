"""Wiring: from the engine's facts and the user's configuration to open tiers."""

from __future__ import annotations

import logging
from contextlib import ExitStack

from tiering.config import TieringConfig
from tiering.engine_config import EngineConfig
from tiering.isolation import IsolatedTier
from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.naming import Namespace
from tiering.region import SharedOffloadRegion
from tiering.registry import SecondaryTierFactory
from tiering.tier import TierConfig

__all__ = ["namespace_of", "open_secondary_tiers"]

logger = logging.getLogger(__name__)


def namespace_of(engine: EngineConfig, block_size_factor: int, row_bytes: int) -> Namespace:
    """Return the namespace of what this engine stores."""
    return Namespace(
        model_name=engine.model_name,
        model_revision=engine.model_revision,
        weights_digest=engine.weights_digest,
        kv_dtype=engine.kv_dtype,
        kv_layout=engine.kv_layout,
        tokens_per_chunk=tuple(
            group.tokens_per_block * engine.context_parallel_factor * block_size_factor for group in engine.groups
        ),
        group_page_bytes=tuple(
            tuple(engine.tensor_page_bytes[idx] for idx in group.tensor_indices) for group in engine.groups
        ),
        block_size_factor=block_size_factor,
        world_size=engine.num_columns,
        parallel_layout=engine.parallel_layout,
        hash_scheme=engine.hash_scheme,
        row_bytes=row_bytes,
    )


def open_secondary_tiers(
    config: TieringConfig,
    namespace: Namespace,
    region: SharedOffloadRegion,
    *,
    enable_events: bool = False,
) -> list[TierWorker]:
    """Open the configured tiers over the rows of ``region``, in their order; waits until all are open.

    Raises:
        Exception: what the first failing tier raised, with a note that names it. The tiers before it are closed again.
    """
    opened = []
    with ExitStack() as undo:
        for tier_config in config.secondary_tier_configs:
            try:
                worker = _open(tier_config, namespace, region, enable_events=enable_events)
                undo.callback(_close_again, worker)
                worker.announce_contents()
                logger.info("tier %s: %s", worker.name, worker.describe() or "open")
            except Exception as error:
                error.add_note(f"while opening the secondary tier {(tier_config.name or tier_config.type)!r}")
                raise
            opened.append(worker)
        undo.pop_all()
    return opened


def _close_again(worker: TierWorker) -> None:
    try:
        worker.shutdown()
    except Exception:  # the error that made us close it is the one to report
        logger.exception("tier %s could not be closed again", worker.name)


def _open(
    config: TierConfig,
    namespace: Namespace,
    region: SharedOffloadRegion,
    *,
    enable_events: bool,
) -> TierWorker:
    if config.isolation == "process":
        return IsolatedTier(config, region, namespace, enable_events=enable_events)
    return TierWorker(
        lambda context: SecondaryTierFactory.create_secondary_tier(config, context),
        JobLoop(f"tiering-loop-{config.name or config.type}"),
        region.row_views,
        name=config.name or config.type,
        row_bytes=namespace.row_bytes,
        namespace=namespace,
        enable_events=enable_events,
        num_threads=config.threads,
        limits=config.limits,
        breaker=config.breaker,
    )
