"""The manager over a real object store that dies, stalls, belongs to others or loses objects: misses, never more."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from engine_over_a_bucket import Engine, generated, running_engine
from object_harness import BUCKET, ROW_BYTES, Place, keys_of, new_server, settings_for

from tiering.build import namespace_of
from tiering.engine_config import EngineConfig, KVGroup
from tiering.keys import OffloadKey
from tiering.naming import Namespace
from tiering.offloading_manager import LookupStatus
from tiering.request import ReqContext
from tiering.testing import ResourceWatch, TierWrapper, check_quiescent, drain
from tiering.testing.fault_proxy import FaultProxy
from tiering.testing.http_faults import HttpFault
from tiering.tier import Tier

PATIENT = {"lookup_timeout": "30s", "load_timeout": "30s", "store_timeout": "30s", "store_share": 1.0}
NEVER_OPENS = {"window": 10_000, "min_failures": 10_000}
NO_MEMORY = {"positive_ttl": 0}


@pytest.fixture
def proxy(place: Place) -> Iterator[FaultProxy]:
    assert place.server is not None
    with FaultProxy(place.server.endpoint_url) as proxy:
        yield proxy


def test_a_server_killed_in_the_middle_costs_misses_only() -> None:
    server = new_server("seaweedfs")
    requests = generated(45)
    kill_after, start_after = 15, 30
    num_finished = 0

    def on_finished() -> None:
        nonlocal num_finished
        num_finished += 1
        if num_finished == kill_after:
            server.kill()
        elif num_finished == start_after:
            opened.append(engine.stats())
            server.start()

    opened: list[dict[str, Any]] = []
    breaker = {"window": 4, "min_failures": 2, "open_for": "50ms", "max_open_for": "100ms"}
    with server:
        server.make_bucket(BUCKET)
        place = Place(settings_for(server, prefix="p"), server, "p")
        with running_engine(place, num_rows=200, breaker=breaker, limits=PATIENT) as engine:
            report = engine.serve(requests, on_finished)
            assert (report.is_good, report.leaks, report.counts.mismatches) == (True, [], 0)
            assert report.counts.requests == num_finished == len(requests)
            while_dead, at_end = opened[0], engine.stats()
            assert while_dead["breaker_opened"] > 0
            assert while_dead["faults"] > 0
            assert at_end["breaker"] == "closed"
            assert at_end["stored_chunks"] > while_dead["stored_chunks"]
            engine.manager.reset_cache()
            assert engine.serve(requests[:10]).counts.hits["objects"] > 0
            check_quiescent(engine.manager, 200)


def in_time(engine: Engine, keys: list[OffloadKey], request: ReqContext) -> bool:
    """Whether the store answers within its short limits: a busy machine may need more than one try."""
    engine.manager.reset_cache()
    return "objects" in engine.load(request, keys)


def test_a_store_that_stalls_keeps_nobody_waiting(place: Place) -> None:
    limits = {"lookup_timeout": "0.3s", "load_timeout": "0.3s", "transfers": 4, "questions": 4, "store_share": 1.0}
    keys = keys_of(*range(96))
    rounds = [HttpFault("HEAD", stall=True), HttpFault("GET", stall=True)] * 5
    assert place.server is not None
    with running_engine(place, num_rows=96) as engine:  # the client library makes what it keeps for good
        engine.store(keys)
    with ResourceWatch(), FaultProxy(place.server.endpoint_url) as proxy:
        options = {"limits": limits, "breaker": NEVER_OPENS, "verdicts": NO_MEMORY, "memory_below": True}
        with running_engine(place.through(proxy), num_rows=96, **options) as engine:
            engine.store(keys)
            engine.manager.reset_cache()
            threads = threading.active_count()
            for number, fault in enumerate(rounds):
                asked = keys[8 * number : 8 * number + 8]
                with proxy.during(fault):
                    assert engine.load(ReqContext(f"r{number}"), asked) == ["memory"] * 8
                    drain(engine.manager)
            stats = engine.stats()
            late = [stats[name] for name in ("lookup_timeouts", "lookup_failures", "load_timeouts", "load_failures")]
            assert sum(late) >= len(rounds) * 8
            assert engine.stats("memory")["load_failures"] == 0
            assert any(in_time(engine, keys[80:], ReqContext(f"after-{number}")) for number in range(50))
            drain(engine.manager)
            # All requests of ten rounds have ended: what is open is kept for the next ones.
            assert threading.active_count() <= threads
            assert proxy.num_connections <= limits["transfers"] + limits["questions"]
            check_quiescent(engine.manager, 96)


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_a_request_that_is_never_answered_costs_one_miss(place: Place, proxy: FaultProxy, method: str) -> None:
    limits = {"lookup_timeout": "2s", "load_timeout": "2s", "store_share": 1.0}
    *keys, last = keys_of(*range(16))
    with running_engine(place.through(proxy), num_rows=32, limits=limits, verdicts=NO_MEMORY) as engine:
        engine.store([*keys, last])
        engine.manager.reset_cache()
        with proxy.during(HttpFault(method, path=last.hex(), stall=True)):
            assert engine.load(ReqContext("r"), [*keys, last]) == ["objects"] * len(keys)
        stats = engine.stats()
        assert (stats["lookup_timeouts"], stats["load_timeouts"], stats["faults"]) == (0, 0, 0)
        check_quiescent(engine.manager, 32)


class Announcing(TierWrapper):
    """Tells when a batch of questions has been answered, and how large it was."""

    def __init__(self, inner: Tier) -> None:
        super().__init__(inner)
        self.batches: list[int] = []
        self.answered = threading.Event()

    async def lookup(self, keys: Sequence[OffloadKey]) -> list[bool]:
        answers = await self.inner.lookup(keys)
        self.batches.append(len(keys))
        asyncio.get_running_loop().call_soon(self.answered.set)  # after the core has taken the answers over
        return answers


def test_256_keys_are_one_batch_and_one_head_each(place: Place, proxy: FaultProxy) -> None:
    keys = keys_of(*range(256))
    present, absent = keys[:128], keys[128:]
    with running_engine(place, num_rows=128, limits=PATIENT) as writer:
        writer.store(present)
    with running_engine(place.through(proxy), num_rows=256, limits=PATIENT, around=Announcing) as engine:
        objects, manager = engine.objects, engine.manager
        assert isinstance(objects, Announcing)
        one, two = ReqContext("one"), ReqContext("two")
        for request, asked in ((one, keys), (two, keys[64:192])):
            assert {manager.status(key, request) for key in asked} == {LookupStatus.UNKNOWN}
        manager.on_schedule_end()
        assert objects.answered.wait(30)
        assert (objects.batches, proxy.count("HEAD")) == ([256], 256)
        assert len({request.path for request in proxy.requests if request.method == "HEAD"}) == 256
        for request, asked in ((one, keys), (two, keys[64:192])):
            expected = dict.fromkeys(present, LookupStatus.PENDING) | dict.fromkeys(absent, LookupStatus.ABSENT)
            assert [manager.status(key, request) for key in asked] == [expected[key] for key in asked]
        manager.on_schedule_end()
        drain(manager, 30)
        assert engine.load(one, keys) == ["objects"] * 128
        assert (proxy.count("HEAD"), proxy.count("GET")) == (256, 128)
        manager.on_request_finished(two)
        check_quiescent(manager, 256)


def test_chunks_of_another_model_are_not_found_and_it_is_written_down_why(place: Place) -> None:
    ours = EngineConfig(
        "engine",
        (KVGroup(16, (0,)),),
        (ROW_BYTES // 2,),
        num_device_blocks=8,
        tokens_per_hash=16,
        world_size=2,
        model_name="model",
        kv_dtype="bfloat16",
        weights_digest="aa",
        kv_layout="NHD",
    )
    others = {
        "model_name": replace(ours, model_name="other"),
        "kv_dtype": replace(ours, kv_dtype="fp8"),
        "weights_digest": replace(ours, weights_digest="bb"),
        "kv_layout": replace(ours, kv_layout="HND"),
        "world_size": replace(ours, world_size=4),
    }
    keys = keys_of(*range(5))
    with running_engine(place, num_rows=8, name_space=name_space_of(ours), limits=PATIENT) as engine:
        engine.store(keys)
    for field, other in others.items():
        name_space = name_space_of(other)
        with running_engine(place, num_rows=8, name_space=name_space, limits=PATIENT) as engine:
            assert engine.load(ReqContext("r"), keys) == []
            assert engine.stats()["loaded_chunks"] == engine.stats()["load_failures"] == 0
        written = place.read(f"{name_space.fingerprint.hex()}/namespace.json").decode()
        (difference,) = name_space_of(ours).differences(written)
        assert difference.startswith(f"{field}: ")
    with running_engine(place, num_rows=8, name_space=name_space_of(ours), limits=PATIENT) as engine:
        assert engine.load(ReqContext("r"), keys) == ["objects"] * len(keys)


def name_space_of(engine: EngineConfig) -> Namespace:
    return namespace_of(engine, 1, ROW_BYTES)


@pytest.mark.parametrize("place", ["obstore-seaweedfs"], indirect=True)
def test_objects_deleted_by_others_while_they_are_loaded(place: Place) -> None:
    requests = generated(25)
    with running_engine(place, num_rows=200, limits=PATIENT) as engine:
        engine.serve(requests)
        engine.manager.reset_cache()
        complete = engine.serve(requests).counts
        stored = place.chunks()
        delete_every_second(place, stored[: len(stored) // 2])
        engine.manager.reset_cache()
        with deleting_one_by_one(place, stored[len(stored) // 2 :]):
            report = engine.serve(requests)
        assert (report.is_good, report.leaks) == (True, [])
        assert report.counts.hits["objects"] > 0
        assert report.counts.prefix_hits < complete.prefix_hits
        # What is gone was believed to be there, so the loads have found out.
        assert engine.stats()["load_failures"] > 0
        assert engine.stats()["breaker_opened"] == 0
        check_quiescent(engine.manager, 200)


def delete_every_second(place: Place, names: Sequence[str]) -> None:
    """Delete through a tier of another engine what has an even number, and behind everybody's back the others."""

    async def delete() -> None:
        async with place.opened() as other:
            await other.delete([key_in(name) for name in names[::2]])

    asyncio.run(delete())
    for name in names[1::2]:
        place.remove(name)


def key_in(name: str) -> OffloadKey:
    return OffloadKey(bytes.fromhex(name.rpartition("/")[2]))


@contextmanager
def deleting_one_by_one(place: Place, names: Sequence[str]) -> Iterator[None]:
    """Delete objects on another thread, in turn in both ways, until the block ends."""
    done = threading.Event()

    async def delete() -> None:
        async with place.opened() as other:
            for number, name in enumerate(names):
                if done.is_set():
                    break
                if number % 2:
                    await other.delete([key_in(name)])
                else:
                    place.remove(name)

    thread = threading.Thread(target=asyncio.run, args=(delete(),))
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
