"""What real stores do wrong, through a proxy before a real server: misses and counters, never a wrong byte."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from object_harness import BUCKET, Place, key_of, keys_of, load, store

from tiering.errors import PermanentTierError, TemporaryTierError
from tiering.testing.fault_proxy import FaultProxy
from tiering.testing.http_faults import HttpFault

pytestmark = pytest.mark.parametrize("place", ["s3fs-seaweedfs", "obstore-seaweedfs"], indirect=True)


@pytest.fixture
def proxy(place: Place) -> Iterator[FaultProxy]:
    assert place.server is not None
    with FaultProxy(place.server.endpoint_url) as proxy:
        yield proxy


def test_one_request_for_each_operation(place: Place, proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with place.through(proxy).opened() as tier:
            before = len(proxy.requests)
            assert all(await store(tier, *range(10)))
            assert proxy.count("PUT", f"/{place.directory}/") == len(proxy.requests) - before + 2 == 12
            before = len(proxy.requests)
            assert all(await load(tier, *range(10)))
            assert proxy.count("GET") == len(proxy.requests) - before == 10
        async with place.through(proxy).opened() as tier:
            before = len(proxy.requests)
            assert all(await tier.lookup(keys_of(*range(10))))
            assert all(await tier.lookup(keys_of(*range(10))))
            assert proxy.count("HEAD") == len(proxy.requests) - before == 10
            assert tier.counters.remembered == 10
        assert all(request.path.startswith(f"/{BUCKET}/{place.directory}/") for request in proxy.requests)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("status", "code"),
    [(503, "SlowDown"), (500, "InternalError"), (429, "TooManyRequests"), (403, "RequestTimeTooSkewed")],
)
def test_failures_that_pass_are_tried_again(place: Place, proxy: FaultProxy, status: int, code: str) -> None:
    # The answer to a HEAD has no body that could hold a code.
    methods = ("PUT", "GET") if status == 403 else ("PUT", "HEAD", "GET")

    async def scenario() -> None:
        async with place.through(proxy).opened() as tier:
            for method in methods:
                proxy.add(HttpFault(method, times=3, status=status, code=code))
            assert await store(tier, 1) == [True]
            async with place.through(proxy).opened() as other:
                assert await other.lookup(keys_of(1)) == [True]
                assert await load(other, 1) == [True]
                assert tier.counters.retries + other.counters.retries == 3 * len(methods)

    asyncio.run(scenario())


def test_failures_that_stay_end_in_bounded_time_and_are_not_remembered(place: Place, proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with place.through(proxy).opened() as tier, place.through(proxy).opened() as other:
            await store(tier, 1)
            with proxy.during(HttpFault(status=503)):
                before = len(proxy.requests)
                for call in (other.lookup(keys_of(1)), load(other, 1), store(other, 2)):
                    with pytest.raises(TemporaryTierError, match=r"SlowDown|503"):
                        await call
                assert len(proxy.requests) - before == 3 * 4
                assert other.counters.vanished == 0
            assert await other.lookup(keys_of(1, 2)) == [True, False]
            assert await load(other, 1) == [True]

    asyncio.run(scenario())


def test_one_bad_key_fails_alone(place: Place, proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with place.through(proxy).opened() as tier, place.through(proxy).opened() as other:
            proxy.add(HttpFault("PUT", path=key_of(2).hex(), status=503))
            assert await store(tier, 1, 2, 3) == [True, False, True]
            assert tier.counters.store_errors == 1
            proxy.add(HttpFault(path=key_of(3).hex(), status=500))
            assert await other.lookup(keys_of(1, 2, 3)) == [True, False, False]
            assert await load(other, 1, 2, 3) == [True, False, False]
            assert (other.counters.lookup_errors, other.counters.load_errors) == (1, 1)

    asyncio.run(scenario())


def test_a_refusal_is_no_absence_and_is_not_tried_without_end(place: Place, proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with place.through(proxy).opened() as tier, place.through(proxy).opened() as other:
            await store(tier, 1)
            proxy.add(HttpFault(status=403, code="AccessDenied"))
            before = len(proxy.requests)
            for _ in range(5):
                for call in (other.lookup(keys_of(1)), load(other, 1), store(other, 2)):
                    with pytest.raises(PermanentTierError, match="403"):
                        await call
            assert len(proxy.requests) - before == 15 + 1
            assert other.counters.renewals == 1
            proxy.clear()
            assert await other.lookup(keys_of(1)) == [True]

    asyncio.run(scenario())


@pytest.mark.parametrize("cut_after", [0, 100, 256, 4000])
def test_a_body_that_ends_early(place: Place, proxy: FaultProxy, cut_after: int) -> None:
    async def scenario() -> None:
        async with place.through(proxy).opened() as tier:
            await store(tier, 1)
            proxy.add(HttpFault("GET", times=1, cut_after=cut_after))
            assert await load(tier, 1) == [True]
            with proxy.during(HttpFault("GET", cut_after=cut_after)), pytest.raises(TemporaryTierError):
                await load(tier, 1)
            assert await load(tier, 1) == [True]

    asyncio.run(scenario())


@pytest.mark.parametrize("body", [b"", b"<Error><Code>SlowDown</Code></Error>", b"x" * (256 + 8193)])
def test_another_body_with_a_good_status(place: Place, proxy: FaultProxy, body: bytes) -> None:
    async def scenario() -> None:
        async with place.through(proxy).opened() as tier:
            await store(tier, 1)
            proxy.add(HttpFault("GET", times=1, replace_body=body))
            assert await load(tier, 1) == [True]
            with proxy.during(HttpFault("GET", replace_body=body)):
                assert await load(tier, 1) == [False]
            assert tier.counters.corrupt == 1
            assert len(place.chunks()) == 1
            assert await load(tier, 1) == [True]

    asyncio.run(scenario())


def test_a_byte_flipped_on_the_way_costs_a_second_reading_only(place: Place, proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with place.through(proxy).opened() as tier:
            await store(tier, 1)
            proxy.add(HttpFault("GET", times=1, flip_at=5000))
            assert await load(tier, 1) == [True]
            # Two readings that are damaged differently do not prove that the object is.
            proxy.add(HttpFault("GET", times=2, flip_at=6000))
            proxy.add(HttpFault("GET", times=1, flip_at=7000))
            assert await load(tier, 1) == [False]
            assert tier.counters.deleted == 0
            proxy.clear()
            assert await load(tier, 1) == [True]

    asyncio.run(scenario())


def test_resets_and_slow_bodies(place: Place, proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with place.through(proxy).opened() as tier:
            proxy.add(HttpFault(times=2, reset=True))
            assert await store(tier, 1) == [True]
            proxy.add(HttpFault("GET", times=2, reset=True))
            assert await load(tier, 1) == [True]
            proxy.add(HttpFault("GET", times=1, bytes_per_second=100_000))
            assert await load(tier, 1) == [True]

    asyncio.run(scenario())


def test_a_silent_store_is_waited_for_until_the_deadline_only(place: Place, proxy: FaultProxy) -> None:
    limits = {"lookup_timeout": "0.2s", "load_timeout": "0.3s", "store_timeout": "0.3s", "transfers": 4}

    async def scenario() -> None:
        async with place.through(proxy).opened(limits=limits) as tier:
            assert await store(tier, 1) == [True]
            num_tasks = len(asyncio.all_tasks())
            begun = asyncio.get_running_loop().time()
            with proxy.during(HttpFault(stall=True)):
                for number in range(3):
                    calls = (
                        tier.lookup(keys_of(*range(100, 120))),
                        load(tier, 1, 2, 3, 4, 5, 6),
                        store(tier, 7, number),
                    )
                    for result in await asyncio.gather(*calls, return_exceptions=True):
                        assert isinstance(result, TemporaryTierError)
            assert asyncio.get_running_loop().time() - begun < 5
            assert len(asyncio.all_tasks()) == num_tasks
            assert await load(tier, 1) == [True]
            assert await store(tier, 7) == [True]
            assert proxy.num_connections <= 12

    asyncio.run(scenario())


def test_slow_answers_are_taken_as_far_as_they_come_in_time(place: Place, proxy: FaultProxy) -> None:
    limits = {"lookup_timeout": "0.5s", "questions": 4}

    async def scenario() -> None:
        async with place.through(proxy).opened(limits=limits) as tier:
            await store(tier, *range(40))
        async with place.through(proxy).opened(limits=limits) as tier:
            proxy.add(HttpFault("HEAD", delay_seconds=0.1))
            begun = asyncio.get_running_loop().time()
            found = await tier.lookup(keys_of(*range(40)))
            assert asyncio.get_running_loop().time() - begun < 3
            assert 0 < sum(found) < 40
            assert tier.counters.lookup_errors == 40 - sum(found)

    asyncio.run(scenario())


def test_a_late_answer_never_overrules_a_store(place: Place, proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with place.through(proxy).opened(verdicts={"negative_ttl": "60s"}) as tier:
            proxy.add(HttpFault("HEAD", times=1, status=404, delay_seconds=0.5))
            probe = asyncio.create_task(tier.lookup(keys_of(1)))
            await asyncio.to_thread(proxy.wait_for, "HEAD", 1)
            assert await store(tier, 1) == [True]
            assert not probe.done()
            assert await probe == [True]
            assert await tier.lookup(keys_of(1)) == [True]

    asyncio.run(scenario())


def test_existing_objects_are_not_written_again_where_the_store_can_tell(place: Place, proxy: FaultProxy) -> None:
    async def scenario() -> None:
        async with place.through(proxy).opened() as tier, place.through(proxy).opened() as other:
            assert "If-None-Match is honoured" in tier.describe()
            await store(tier, 1)
            assert await store(other, 1) == [True]
            assert other.counters.already_stored == 1
        refuses = HttpFault(
            "PUT", matches=lambda request: "if-none-match" in request.headers, status=501, code="NotImplemented"
        )
        with proxy.during(refuses):
            async with place.through(proxy).opened() as tier:
                assert "If-None-Match is not used" in tier.describe()
                assert await store(tier, 1) == [True]
                assert await load(tier, 1) == [True]

    asyncio.run(scenario())


def test_an_unreachable_store_does_not_stop_the_start(place: Place, proxy: FaultProxy) -> None:
    async def scenario() -> None:
        proxy.add(HttpFault(status=503))
        async with place.through(proxy).opened() as tier:
            assert "not reached yet" in tier.describe()
            with pytest.raises(TemporaryTierError):
                await tier.lookup(keys_of(1))
            proxy.clear()
            assert await store(tier, 1) == [True]
            assert "honoured" in tier.describe()
            assert any(name.endswith("namespace.json") for name in place.names())

    asyncio.run(scenario())


def test_a_missing_bucket_or_a_wrong_secret_refuses_to_start(place: Place) -> None:
    async def scenario() -> None:
        for wrong in ({"bucket": "no-such-bucket"}, {"secret_access_key": "wrong-secret"}):
            tier = place.tier(**wrong)
            with pytest.raises(PermanentTierError, match=r"NoSuchBucket|not found|SignatureDoesNotMatch|403") as caught:
                await tier.open()
            assert "wrong-secret" not in repr(caught.value)

    asyncio.run(scenario())
