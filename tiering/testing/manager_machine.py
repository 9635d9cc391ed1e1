"""The manager against a model, through random histories that Hypothesis makes up and cuts down.

The model is what an engine and the consumers of events may rely on: sets of chunks per tier, known from events alone,
and the bytes that belong to each key. Copies are as late as they may be: each rank writes its half of a row just before
the store is reported, or earlier, and reads it just before the load is; the scripted tiers do the same. So a row that
is given out too early shows as wrong bytes.
"""

from __future__ import annotations

from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from tiering.errors import KeysNotReadyError
from tiering.keys import OffloadKey
from tiering.offloading_manager import LookupStatus
from tiering.request import ReqContext
from tiering.secondary_tier import JobResult
from tiering.testing.manager_model import CHUNKS, REQUESTS, ManagerModel, OpenCopy

__all__ = ["ManagerMachine", "run_machine"]

_some_chunks = st.lists(st.sampled_from(CHUNKS), min_size=1, max_size=6)
_a_request = st.sampled_from(REQUESTS)
_a_place = st.integers(min_value=0, max_value=63)
_a_tier = st.integers(min_value=0, max_value=2)


class ManagerMachine(ManagerModel):
    """Rules are what an engine, its ranks, and three tiers may do at any time.

    A subclass may put a tier of its own below the three, see `ManagerModel.make_tier`.
    """

    # -- the engine -------------------------------------------------------------------------------------------------

    @rule(request=_a_request, chunks=_some_chunks)
    def begin_store(self, request: ReqContext, chunks: list[OffloadKey]) -> None:
        store = self.manager.prepare_store(chunks, request)
        if store is not None and store.keys_to_store:
            assert self.content["cpu"].isdisjoint(store.keys_to_store)
            self.stores.append(
                OpenCopy(dict(zip(store.keys_to_store, store.store_spec.block_ids.tolist(), strict=True)))
            )

    @precondition(lambda self: self.stores)
    @rule(place=_a_place)
    def a_rank_stores(self, place: int) -> None:
        copy = self.stores[place % len(self.stores)]
        if copy.ranks:
            self.write_half(copy, copy.ranks.pop(place % len(copy.ranks)))

    @precondition(lambda self: self.stores)
    @rule(place=_a_place, success=st.booleans())
    def end_store(self, place: int, success: bool) -> None:
        copy = self.stores.pop(_first_in_order(self.stores, place))
        while copy.ranks and success:
            self.write_half(copy, copy.ranks.pop())
        self.manager.complete_store(copy.rows, success)

    @rule(request=_a_request, chunks=_some_chunks)
    def look_up(self, request: ReqContext, chunks: list[OffloadKey]) -> None:
        self.take_events()
        for chunk in chunks:
            status = self.manager.status(chunk, request)
            assert (status is LookupStatus.READY) == (chunk in self.content["cpu"])
            if status is LookupStatus.PENDING:
                assert chunk in self.primary.rows.index, "pending without anybody who brings it"
            # A promotion may have evicted something else: the next answers are about the state after it.
            self.take_events()
            if status is LookupStatus.READY:
                self.promised.add(chunk)

    @rule(request=_a_request, chunks=_some_chunks)
    def begin_load(self, request: ReqContext, chunks: list[OffloadKey]) -> None:
        found = self.manager.lookup_prefix(chunks, request)
        self.promised.update(chunks[: found.num_ready])
        ready = list(dict.fromkeys(chunks[: found.num_ready]))
        rows = self.manager.prepare_load(ready, request).block_ids.tolist()
        if ready:
            self.loads.append(OpenCopy(dict(zip(ready, rows, strict=True))))

    @rule(request=_a_request, chunks=_some_chunks)
    def load_without_asking(self, request: ReqContext, chunks: list[OffloadKey]) -> None:
        self.take_events()
        missing = [chunk for chunk in dict.fromkeys(chunks) if chunk not in self.content["cpu"]]
        if missing:
            refusal = None
            try:
                self.manager.prepare_load(chunks, request)
            except KeysNotReadyError as error:
                refusal = list(error.keys)
            assert refusal == missing, "a load of chunks that are not ready was begun, or refused for others"

    @precondition(lambda self: self.loads)
    @rule(place=_a_place)
    def a_rank_loads(self, place: int) -> None:
        copy = self.loads[place % len(self.loads)]
        if copy.ranks:
            self.read_half(copy, copy.ranks.pop(place % len(copy.ranks)))

    @precondition(lambda self: self.loads)
    @rule(place=_a_place)
    def end_load(self, place: int) -> None:
        copy = self.loads.pop(_first_in_order(self.loads, place))
        while copy.ranks:
            self.read_half(copy, copy.ranks.pop())
        self.manager.complete_load(copy.rows)

    @rule(chunks=_some_chunks)
    def touch(self, chunks: list[OffloadKey]) -> None:
        self.manager.touch(chunks)

    @rule(request=_a_request)
    def finish(self, request: ReqContext) -> None:
        self.manager.on_request_finished(request)

    @rule()
    def step(self) -> None:
        self.manager.on_schedule_end()
        self.promised.clear()

    @rule(seconds=st.sampled_from([0.5, 20.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(request=_a_request, chunks=_some_chunks, seconds=st.sampled_from([0.5, 20.0]))
    def wait_for_promotions(self, request: ReqContext, chunks: list[OffloadKey], seconds: float) -> None:
        """One rule, since chance alone would seldom let a load begin, and then be slow or late."""
        self.look_up(request, chunks)
        self.step()
        self.wait(seconds)
        self.step()

    @rule()
    def reset(self) -> None:
        self.manager.reset_cache()
        self.promised.clear()
        self.take_events()
        assert self.content["cpu"] == set()

    # -- the scripted tiers -----------------------------------------------------------------------------------------

    @precondition(lambda self: any(tier.jobs for tier in self.scripted))
    @rule(
        place=_a_place, flags=st.lists(st.booleans(), min_size=6, max_size=6), shape=st.sampled_from([0, 0, 0, -1, 1])
    )
    def end_job(self, place: int, flags: list[bool], shape: int) -> None:
        """Some chunks fail; now and then there is an answer too few or too many."""
        busy = [tier for tier in self.scripted if tier.jobs]
        tier = busy[place % len(busy)]
        job = tier.jobs[place % len(tier.jobs)]
        tier.finish(job, ([*flags, True])[: len(job.keys) + shape])

    @precondition(lambda self: any(tier.jobs for tier in self.scripted))
    @rule()
    def end_all_jobs(self) -> None:
        for tier in self.scripted:
            tier.finish_all()

    @rule(tier=_a_tier, chunk=st.sampled_from(CHUNKS), answer=st.sampled_from([None, True, False, "own"]))
    def change_answer(self, tier: int, chunk: OffloadKey, answer: bool | str | None) -> None:
        answers = self.scripted[tier].answers
        answers.pop(chunk, None)
        if not isinstance(answer, str):
            answers[chunk] = answer

    @rule(tier=_a_tier, chunks=_some_chunks)
    def lose(self, tier: int, chunks: list[OffloadKey]) -> None:
        self.scripted[tier].evict(*chunks)

    @rule(
        tier=_a_tier,
        method=st.sampled_from(
            ["lookup", "submit_store", "submit_load", "touch", "on_schedule_end", "get_finished_jobs", ""]
        ),
    )
    def misbehave(self, tier: int, method: str) -> None:
        """Raise in the next call of a method, or report a job that there never was."""
        if method:
            self.scripted[tier].raise_in(method, RuntimeError("broken"))
        else:
            self.scripted[tier].report(JobResult(10**9, [True]))


def run_machine(machine: type[ManagerMachine], *, num_examples: int, num_steps: int = 50, first_seed: int = 0) -> None:
    """Play so many random histories, always the same ones for a seed.

    Raises:
        AssertionError: an invariant was violated; Hypothesis has printed the shortest history that does it, and a
            note says the seed.
    """
    chosen = seed(first_seed)(type(machine.__name__, (machine,), {}))
    print(f"{machine.__name__}: {num_examples} histories of {num_steps} steps, seed {first_seed}")
    try:
        run_state_machine_as_test(
            chosen,
            settings=settings(
                max_examples=num_examples,
                stateful_step_count=num_steps,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
    except BaseException as error:
        error.add_note(f"played with seed {first_seed}")
        raise


def _first_in_order(copies: list[OpenCopy], place: int) -> int:
    """Choose a copy that may end now: those of one key end in the order in which they began."""
    chosen = place % len(copies)
    while earlier := [n for n in range(chosen) if copies[n].rows.keys() & copies[chosen].rows.keys()]:
        chosen = earlier[0]
    return chosen
