# SPDX-License-Identifier: Apache-2.0
"""Every proposal of an engine, noted by its scheduler or, where that is not told, by a worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from tests.support.reference import DraftProposal

IN_WORKERS = f"{__name__}.Extension"
"""``worker_extension_cls`` of an engine whose workers note them."""
NUM_SAMPLED = 4
"""Where ``propose`` has how many tokens were sampled for each request, behind the batch."""


@dataclasses.dataclass(frozen=True)
class VerifyStep:
    """What a step made of one request: token ids, the context without what it verified.

    Attributes:
        context: accepted so far.
        drafted: draft tokens that the target verified.
        sampled: those of them that it accepted, and its own behind them; before any cut.
        together: requests in the step.
    """

    context: list[int]
    drafted: list[int]
    sampled: list[int]
    together: int = 1


def verify_steps(scheduler: Any) -> list[VerifyStep]:
    """Note what each step gives each request, before the scheduler looks at stops and lengths."""
    noted: list[VerifyStep] = []
    take = scheduler.update_from_output

    def noting(scheduled: Any, made: Any) -> Any:
        drafted = scheduled.scheduled_spec_decode_tokens
        for name, index in made.req_id_to_index.items():
            request = scheduler.requests.get(name)
            sampled = made.sampled_token_ids[index] if made.sampled_token_ids else []
            if request is not None and not request.is_finished() and len(sampled):
                parts = list(request.all_token_ids), [*drafted.get(name, ())], [*map(int, sampled)]
                noted.append(VerifyStep(*parts, together=len(made.req_id_to_index)))
        return take(scheduled, made)

    scheduler.update_from_output = noting
    return noted


def begin(llm: Any, scenario: Any) -> Callable[[], list[DraftProposal]]:
    """Note the proposals of an ``engine.Scenario`` from now on; what is given gives them."""
    if scenario.drafts_stay_in_workers:
        llm.collective_rpc("record_proposals")
        return lambda: of_workers(llm, scenario.max_tokens)
    if not scenario.record_drafts:
        return list
    noted = of_scheduler(llm.llm_engine.engine_core.engine_core.scheduler)
    return lambda: noted


def of_scheduler(scheduler: Any) -> list[DraftProposal]:
    """Note every proposal that the scheduler takes, with the tokens accepted so far."""
    proposals: list[DraftProposal] = []
    take = scheduler.update_draft_token_ids

    def noting(draft_token_ids: Any) -> None:
        for request_id, tokens in zip(
            draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True
        ):
            request = scheduler.requests.get(request_id)
            if request is None or request.is_finished() or request.is_prefill_chunk:
                continue
            proposals.append(DraftProposal(list(request.all_token_ids), list(tokens)))
        take(draft_token_ids)

    scheduler.update_draft_token_ids = noting
    return proposals


def hand_over_drafts() -> None:
    """Let model runner V2 tell its scheduler the tokens that it drafted, not how many."""
    from vllm.v1.worker.gpu.spec_decode.utils import DraftTokensHandler

    keep = DraftTokensHandler.set_draft_tokens

    def telling(handler: Any, batch: Any, tokens: Any) -> None:
        keep(handler, dataclasses.replace(batch, has_structured_output_reqs=True), tokens)

    DraftTokensHandler.set_draft_tokens = telling


class Extension:
    """Lets a worker note what it proposes, and after which tokens."""

    _noted: list[tuple[list[int], int, list[int]]]

    def record_proposals(self: Any) -> None:
        """Note proposals from now on; only the last pipeline stage makes any.

        Ranks of tensor parallelism propose the same: the first of them notes it.
        """
        from vllm.distributed.parallel_state import get_tp_group

        self._noted = []
        runner = self.model_runner
        if get_tp_group().rank_in_group:
            return
        if not hasattr(runner, "speculator"):
            _record_on_v1(runner, self._noted)
            return
        if runner.speculator is None:
            return
        propose = runner.speculator.propose

        def noting(batch: Any, *arguments: Any, **named: Any) -> Any:
            drafted = propose(batch, *arguments, **named)
            if not named.get("dummy_run"):
                sampled = arguments[NUM_SAMPLED].tolist()
                rows = zip(batch.idx_mapping_np.tolist(), sampled, drafted.tolist(), strict=True)
                self._noted += [
                    (*_known_tokens(runner.req_states, index), tokens)
                    for index, number, tokens in rows
                    if number
                ]
            return drafted

        runner.speculator.propose = noting

    def recorded_proposals(self) -> list[tuple[list[int], int, list[int]]]:
        """For each: the tokens of its request, how many of them are the prompt, and the drafts."""
        return self._noted


def _record_on_v1(runner: Any, noted: list[tuple[list[int], int, list[int]]]) -> None:
    """Add to ``noted`` each proposal from now on, with all tokens before it and the prompt's.

    What a worker of model runner V1 proposes while its scheduler runs ahead: neither that scheduler
    nor the runner knows the tokens that a draft follows when it is made, as the runner keeps the
    sampled ones on the device. So they are gathered here, as they are sampled.
    """
    propose, known = runner.propose_draft_token_ids, {}

    def noting(sampled: Any, sampling: Any, scheduled: Any, *arguments: Any) -> Any:
        drafted = propose(sampled, sampling, scheduled, *arguments)
        requests = runner.input_batch.req_ids
        # Of a preempted request tokens on their way are dropped, and sampled once more.
        known.update(scheduled.scheduled_cached_reqs.all_token_ids)
        rows = zip(requests, sampled.tolist(), drafted.tolist(), strict=True)
        for place, (request, tokens, draft) in enumerate(rows):
            prompt = runner.requests[request].prompt_token_ids
            before = known.setdefault(request, list(prompt))
            # More of the prompt follows: what was sampled behind its chunk is dropped.
            if not runner.discard_request_mask.np[place]:
                known[request] = [*before, *(token for token in tokens if token >= 0)]
                noted.append((known[request], len(prompt), draft))
        return drafted

    runner.propose_draft_token_ids = noting


def _known_tokens(states: Any, index: int) -> tuple[list[int], int]:
    length = int(states.total_len.gpu[index])
    return states.all_token_ids.gpu[index, :length].tolist(), int(states.prompt_len.np[index])


def of_workers(llm: Any, max_tokens: int) -> list[DraftProposal]:
    """The proposals of all workers, without those behind the last token of a request.

    An asynchronous scheduler learns of it later than the worker, which drafts once more.
    """
    noted = [one for worker in llm.collective_rpc("recorded_proposals") for one in worker]
    return [
        DraftProposal(context, tokens)
        for context, prompt, tokens in noted
        if len(context) < prompt + max_tokens
    ]


def reach_into_engine_core() -> None:
    """Let engine cores of processes that are forked from this one answer for their schedulers."""
    from vllm.v1.engine.core import EngineCore

    def record(core: Any) -> None:
        core.noted_proposals = of_scheduler(core.scheduler)

    def give(core: Any) -> list[tuple[list[int], list[int]]]:
        return [(one.context, one.tokens) for one in core.noted_proposals]

    EngineCore.record_proposals, EngineCore.recorded_proposals = record, give


def since_last_asked(llm: Any) -> Callable[[], list[DraftProposal]]:
    """Note proposals from now on, of an engine whose core is in this process or in one of its own.

    Returns:
        What gives those since it was called last.
    """
    client, seen = llm.llm_engine.engine_core, 0
    ask = getattr(client, "call_utility", None) or (
        lambda name: getattr(client.engine_core, name)()
    )
    ask("record_proposals")

    def new() -> list[DraftProposal]:
        nonlocal seen
        noted = ask("recorded_proposals")
        proposals = [DraftProposal(*one) for one in noted[seen:]]
        seen = len(noted)
        return proposals

    return new
