"""What the core does for engines that read and write text by themselves, and resume nothing."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from controller.request import Outcome, Request
from controller.tiers import Targets, Tier
from executor.contract import Ask, PromptLength, Refusal, Report, Returned, Said, StepSample, Tokens
from tests.controller.stage import FREE, PAID, Stage, capacity, model

ASK = Ask("/v1/completions", {})
ENGINE = msgspec.structs.replace(capacity(can_resume=False, can_preempt=False), tells_prefill=False)
WORD = Said({"text": msgspec.Raw(b'"hi"')})


def stage(*, executors: tuple[str, ...] = ("e",), size: int = 4, restart: bool = False) -> Stage:
    """Engines that can neither preempt nor resume; `restart`: free requests may begin again."""
    tiers = (PAID, replace(FREE, restart_unstreamed=restart))
    return Stage.build(tiers=tiers, executors=executors, size=size, ready=ENGINE, model=model())


def arrive(stage: Stage, tier: str = "paid", *, unseen: bool = False, new: int = 10) -> Request:
    request = stage.arrive(tier, new=new)
    request.ask, request.prompt, request.unseen = ASK, range(len(request.prompt)), unseen
    return request


def report(
    stage: Stage, executor: str = "e", **fields: object
) -> list[tuple[Request, list[object]]]:
    message = Report(epoch=0, **fields)  # type: ignore[arg-type]  # fields of Report by name
    return stage.batcher.on_report(executor, stage.incarnation[executor], message, stage.now)


def say(stage: Stage, request: Request, *, executor: str = "e") -> None:
    index = len(request.tokens)
    tokens = Tokens(request.id, request.attempt, index, [0], [WORD])
    assert report(stage, executor, tokens=[tokens]) == [(request, [WORD])]


def give_back(stage: Stage, request: Request, back: Returned) -> None:
    report(stage, str(request.executor), returned=[back])
    stage.running[str(request.executor)].pop(request.id)
    stage.poll()


def failure(request: Request) -> Returned:
    return Returned(request.id, request.attempt, "error", "oops", alone=True)


def test_the_engine_gets_what_was_asked_and_no_tokens() -> None:
    it = stage()
    request = arrive(it)
    (submit,) = it.poll().work["e"].submit
    assert (submit.ask, submit.tokens, submit.prompt_length) == (ASK, [], 10)
    say(it, request)
    assert request.tokens == [0]


def test_what_counts_no_token_is_told_all_the_same() -> None:
    it = stage()
    request = arrive(it)
    it.poll()
    say(it, request)
    last = Tokens(request.id, 1, 1, [], [WORD])
    assert report(it, tokens=[last]) == [(request, [WORD])]
    assert request.tokens == [0]
    # With a hole before it, it is nobody's.
    lost = Tokens(request.id, 1, 5, [], [WORD])
    assert report(it, tokens=[lost]) == []
    it.poll()
    assert it.outcome(request) == (Outcome.FAILED, "tokens_missing")


def test_a_prompt_is_as_long_as_the_engine_says_once_it_says_so() -> None:
    it = stage()
    request = arrive(it)
    it.poll()
    report(it, prompts=[PromptLength(request.id, 1, 37)])
    assert (len(request.prompt), request.work_tokens) == (37, 47)
    it.finish(request.id)
    it.poll()
    seats = it.batcher.executors["e"]
    assert (seats.reserved_tokens, it.batcher.queues["paid"].tokens) == (0, 0)


def test_samples_that_come_late_say_nothing_about_prompts_under_way() -> None:
    it = stage()
    done, under_way = arrive(it), arrive(it)
    it.poll()
    seats = it.batcher.executors["e"]
    assert seats.prompt_tokens == 20
    say(it, done)
    it.report(sample=StepSample(0.02, 1, 0, 10, 10, 100))
    # That was the prompt of the one that is done.
    assert seats.prompt_tokens == 10
    say(it, under_way)
    assert seats.prompt_tokens == 0


def test_a_failure_of_its_own_is_tried_once_more_and_is_nobody_elses() -> None:
    it = stage()
    one, other = arrive(it), arrive(it)
    it.poll()
    give_back(it, one, failure(one))
    assert (one.attempt, one.suspects, other.suspects) == (2, 0, 0)
    give_back(it, one, failure(one))
    assert it.outcome(one) == (Outcome.FAILED, "error")
    assert it.ended[-1].detail == "oops"
    assert it.ids() == [other.id]


def test_what_failed_by_itself_goes_elsewhere() -> None:
    it = stage(executors=("e", "f"))
    request = arrive(it)
    it.poll()
    assert it.ids("e") == [request.id]
    give_back(it, request, failure(request))
    assert (it.ids("e"), it.ids("f")) == ([], [request.id])


def test_who_has_streamed_fails_and_who_was_not_seen_begins_again() -> None:
    it = stage()
    streamed, unseen = arrive(it), arrive(it, unseen=True)
    it.poll()
    say(it, streamed)
    say(it, unseen)
    it.lose(back_at=5.0)
    it.poll()
    assert it.outcome(streamed) == (Outcome.FAILED, "executor_lost")
    assert (unseen.tokens, unseen.outcome) == ([], None)
    it.start(ready=ENGINE)
    it.poll()
    assert unseen.attempt == 2
    say(it, unseen)
    assert unseen.tokens == [0]


def test_no_room_there_is_no_fault() -> None:
    it = stage()
    request = arrive(it)
    it.poll()
    for _ in range(20):
        back = Returned(request.id, request.attempt, "unavailable", "full", alone=True)
        give_back(it, request, back)
    assert (request.faults, request.attempt, request.outcome) == (0, 21, None)


def test_an_engines_refusal_ends_the_request_with_its_words() -> None:
    it = stage()
    request = arrive(it)
    it.poll()
    refusal = Refusal(400, "too long")
    give_back(it, request, Returned(request.id, 1, "refused", "too long", True, True, refusal))
    assert it.outcome(request) == (Outcome.FAILED, "refused")
    assert it.ended[-1].refusal == refusal


# --- seats for higher tiers -----------------------------------------------------------------


def released(it: Stage) -> list[str]:
    return [key.request_id for key in it.released["e"]]


def test_only_where_its_tier_allows_it_does_an_unstreamed_request_make_room() -> None:
    for restart, gone in ((False, []), (True, ["r0"])):
        it = stage(size=1, restart=restart)
        victim = arrive(it, "free", new=1000)
        it.poll()
        paid = arrive(it)
        it.poll(0.1)
        assert released(it) == gone
        if restart:
            it.acknowledge()
            it.poll()
            assert (it.ids(), victim.preemptions, victim.attempt) == ([paid.id], 1, 1)
            it.finish(paid.id)
            it.poll()
            # Once is enough: the second time it stays.
            assert (it.ids(), victim.attempt) == ([victim.id], 2)
            arrive(it)
            it.poll()
            assert released(it) == []


def test_who_has_streamed_keeps_the_seat_unless_nobody_has_seen_it() -> None:
    it = stage(size=2, restart=True)
    streamed, unseen = arrive(it, "free", new=1000), arrive(it, "free", unseen=True, new=1000)
    it.poll()
    say(it, streamed)
    say(it, unseen)
    arrive(it)
    arrive(it)
    it.poll(0.1)
    assert released(it) == [unseen.id]
    it.acknowledge()
    it.poll()
    assert (unseen.tokens, unseen.preemptions) == ([], 1)


def test_the_same_tier_never_makes_room_for_itself() -> None:
    tier = Tier("paid", 2, Targets(ttft_s=1.0), restart_unstreamed=True)
    it = Stage.build(tiers=(tier, FREE), size=1, ready=ENGINE, model=model())
    arrive(it, new=1000)
    it.poll()
    arrive(it)
    it.poll(0.95)
    assert released(it) == []
