"""What the tests of several processes run: ``tier_program.py <what> <settings as JSON> ...``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading

from object_harness import Place, key_of, keys_of, load, namespace, rows_for, store

from tiering.errors import TierError
from tiering.job_loop import JobLoop
from tiering.jobs import TierWorker
from tiering.registry import SecondaryTierFactory, resolve_tier
from tiering.secondary_tier import TransferJob
from tiers.s3.object_tier import ObjectTier

NUM_KEYS = 40


def main() -> None:
    what, settings, *arguments = sys.argv[1:]
    place = Place(json.loads(settings), None, "")
    globals()[what](place, *arguments)


def say(word: str) -> None:
    print(word, flush=True)


def wait_for_the_others() -> None:
    say("ready")
    if not sys.stdin.readline():
        sys.exit(3)


def writer(place: Place, seed: str, num_rounds: str) -> None:
    """Store, load and delete the same keys as the others, a round at a time."""

    async def scenario() -> None:
        async with place.opened() as tier:
            num_hits = 0
            for turn in range(int(num_rounds)):
                await asyncio.to_thread(wait_for_the_others)
                numbers = [(int(seed) * 17 + offset) % NUM_KEYS for offset in range(NUM_KEYS)]
                batches = [numbers[start::8] for start in range(8)]
                for answers in await asyncio.gather(*(store(tier, *batch) for batch in batches)):
                    assert all(answers), "a store failed"
                for answers in await asyncio.gather(*(load(tier, *batch) for batch in batches)):
                    num_hits += sum(answers)
                if turn < int(num_rounds) - 1:
                    await tier.delete(keys_of(*numbers[: NUM_KEYS // 3]))
            assert tier.counters.corrupt == 0, "somebody saw half an object"
            say(f"hits {num_hits}")

    asyncio.run(scenario())


def reader(place: Place) -> None:
    """Load all keys again and again, until standard input ends."""
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()

    async def scenario() -> None:
        async with place.opened() as tier:
            say("ready")
            num_hits = 0
            while not done.is_set():
                num_hits += sum(await load(tier, *range(NUM_KEYS)))
            assert tier.counters.corrupt == 0, "somebody saw half an object"
            say(f"hits {num_hits}")

    asyncio.run(scenario())


def fork_and_use(place: Place) -> None:
    """Use a tier, fork, and use it, and a new one, in the child; the parent goes on with its own."""

    async def in_child(tier: ObjectTier) -> None:
        assert await load(tier, 1) == [True]
        assert await store(tier, 2) == [True]
        await tier.close()
        async with place.opened() as fresh:
            assert await fresh.lookup(keys_of(1, 2, 3)) == [True, True, False]
            assert await load(fresh, 1, 2) == [True, True]

    async def before() -> ObjectTier:
        tier = place.tier()
        await tier.open()
        assert await store(tier, 1) == [True]
        return tier

    async def after(tier: ObjectTier) -> None:
        assert await load(tier, 1) == [True]
        assert await store(tier, 4, 5) == [True, True]
        assert await load(tier, 4, 5) == [True, True]
        await tier.close()

    loop = JobLoop()
    loop.attach()
    tier = loop.wait_for(before())
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(in_child(tier))
        except TierError as error:
            say(f"child: {error}")
        sys.exit(0)  # runs finalizers, as a worker process does
    os.waitpid(child, 0)
    loop.wait_for(after(tier))
    loop.detach()
    say("parent: fine")


def leave_running(place: Place, how: str) -> None:
    """End the interpreter in one of several ways while jobs run."""
    num_rows = 32
    row_bytes = 2**20
    rows = rows_for([key_of(number) for number in range(num_rows)], row_bytes)
    config = resolve_tier(place.settings["type"]).config_type.model_validate(place.settings)
    worker = TierWorker(
        lambda context: SecondaryTierFactory.create_secondary_tier(config, context),
        JobLoop(),
        lambda numbers: [rows[number] for number in numbers],
        name="objects",
        row_bytes=row_bytes,
        namespace=namespace(row_bytes),
    )
    worker.submit_store(TransferJob(1, tuple(keys_of(*range(num_rows))), tuple(range(num_rows))))
    say("running")
    match how:
        case "return":
            return
        case "exit in a thread":
            thread = threading.Thread(target=sys.exit, args=(5,))
            thread.start()
            thread.join()
        case "exception":
            raise KeyError("nobody catches this")
        case "SIGTERM" | "SIGINT":
            os.kill(os.getpid(), getattr(signal, how))


if __name__ == "__main__":
    main()
