"""Policies that raise, or give up rows that are not to be had: they cost hits, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from tiering.keys import OffloadKey, make_offload_key
from tiering.policies.lru import LRUCachePolicy
from tiering.primary import CPUOffloadingManager
from tiering.request import ReqContext
from tiering.testing import check_quiescent

NUM_ROWS = 6
R1 = ReqContext("r1")


def keys(*numbers: int) -> list[OffloadKey]:
    return [make_offload_key(number.to_bytes(4, "big"), 0) for number in numbers]


class SpoiltPolicy(LRUCachePolicy):
    """Least recent use, until a test spoils one of its methods."""

    policy_name = "spoilt"

    def spoil(self, method: str, instead: Callable[..., Any]) -> None:
        setattr(self, method, instead)


def _raising(error: BaseException) -> Callable[..., Any]:
    def method(*arguments: object) -> Any:
        raise error

    return method


def _filled() -> tuple[CPUOffloadingManager, SpoiltPolicy, list[int]]:
    """A manager with rows 0..4 taken, of which a load has the first two pinned, and the rows of that load."""
    manager = CPUOffloadingManager(NUM_ROWS, SpoiltPolicy)
    assert manager.prepare_store(keys(0, 1, 2, 3, 4), ReqContext()) is not None
    manager.complete_store(keys(0, 1, 2, 3, 4))
    manager.on_schedule_end()
    load = manager.prepare_load(keys(0, 1), R1)
    policy = manager.rows.policy.policy
    assert isinstance(policy, SpoiltPolicy)
    return manager, policy, load.block_ids.tolist()


def _use(manager: CPUOffloadingManager, loading: Sequence[int]) -> None:
    """Do everything there is to do, with ``loading`` pinned all the while."""
    for number in range(10, 30):
        store = manager.prepare_store(keys(number, number + 100), R1)
        assert store is not None
        rows = store.store_spec.block_ids.tolist()
        assert len(set(rows)) == len(rows)
        assert set(rows) <= set(range(NUM_ROWS)) - set(loading), "somebody copies from these rows"
        manager.complete_store(keys(number))
        manager.complete_store(keys(number + 100), success=False)
        manager.touch(keys(number, 0))
        manager.on_schedule_end()
    assert manager.lookup(keys(0)[0], R1) is True
    manager.complete_load(keys(0, 1))
    manager.on_request_finished(R1)
    manager.on_schedule_end()
    manager.reset_cache()
    check_quiescent(manager, NUM_ROWS)


@pytest.mark.parametrize(
    "answer",
    [
        lambda loading: loading,
        lambda loading: [loading[0]],
        lambda loading: [],
        lambda loading: [2, 2],
        lambda loading: [2, 3, 4],
        lambda loading: [-1],
        lambda loading: [NUM_ROWS],
        lambda loading: ["row"],
        lambda loading: [None],
        lambda loading: (row for row in (2,)),
        lambda loading: 3,
        lambda loading: [5],
    ],
    ids=["pinned", "pinned one", "none", "twice", "many", "-1", "beyond", "text", "None", "generator", "int", "free"],
)
def test_rows_that_are_not_to_be_had_are_given_to_nobody(answer: Callable[[Sequence[int]], Any]) -> None:
    manager, policy, loading = _filled()
    policy.spoil("evict", lambda num_rows, incoming: answer(loading))
    _use(manager, loading)
    assert type(manager.rows.policy.policy) is LRUCachePolicy


@pytest.mark.parametrize("method", ["insert", "remove", "touch", "refresh", "evict", "unblock", "clear"])
@pytest.mark.parametrize("error", [KeyError(1), SystemExit(1), asyncio.CancelledError()], ids=repr)
def test_a_policy_that_raises_is_replaced(method: str, error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    manager, policy, loading = _filled()
    policy.spoil(method, _raising(error))
    _use(manager, loading)
    assert type(manager.rows.policy.policy) is LRUCachePolicy
    assert caplog.text.count("eviction policy spoilt failed") == 1


def test_a_policy_that_raises_in_the_midst_is_replaced_with_all_rows_there(caplog: pytest.LogCaptureFixture) -> None:
    def evict(num_rows: int, incoming: Sequence[OffloadKey]) -> list[int] | None:
        LRUCachePolicy.evict(policy, num_rows, incoming)
        raise RuntimeError("after it has forgotten its victims and put others aside")

    manager, policy, loading = _filled()
    policy.spoil("evict", evict)
    _use(manager, loading)
    assert "RuntimeError" in caplog.text


def test_the_user_may_interrupt_a_policy() -> None:
    def touch(rows: Iterable[int]) -> None:
        raise KeyboardInterrupt

    manager, policy, _ = _filled()
    policy.spoil("touch", touch)
    with pytest.raises(KeyboardInterrupt):
        manager.touch(keys(0))
