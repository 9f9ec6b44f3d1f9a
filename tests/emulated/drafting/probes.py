# SPDX-License-Identifier: Apache-2.0
"""What tests of drafting have run in processes of their own (``tests/support/probe.py``)."""

import asyncio
import copy
import dataclasses
import multiprocessing
import os
from unittest import mock

from tests.support.probe import (
    ProbedEngine,
    core_of,
    counts,
    generated,
    given,
    greedy,
    said,
    started,
    worker_of,
)


def abort(case):
    """Abort requests between steps: the others' tokens."""
    llm = started(case["engine"], traced=True)
    engine = llm.llm_engine
    for number, prompt in enumerate(given(case["prompts"])):
        engine.add_request(str(number), prompt, greedy(case["max_tokens"]))
    tokens, cached, steps = {}, {}, 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                tokens[output.request_id] = list(output.outputs[0].token_ids)
                cached[output.request_id] = output.num_cached_tokens or 0
        steps += 1
        aborted = case["aborts"].get(str(steps))
        if aborted:
            engine.abort_request([str(number) for number in aborted])
    return {"tokens": tokens, "cached": cached, "steps": steps, **counts(llm)}


def auxiliary_states(asked):
    """The result of a scenario, and hidden states that the target gave.

    The pass that prefills the first prompt gives them: ``[depths, its tokens, width]``.
    """
    from tests.support import engine, hosts

    runner = hosts.module("runner").MkvModelRunner
    case = engine.Scenario(**asked)
    states, run = [], runner._model_forward

    def recording(runner, *args, **kwargs):
        output, gathered = run(runner, *args, **kwargs)
        if not states and runner.input_batch.num_reqs:  # no dummy run
            states.extend(one[: len(case.prompts[0])].tolist() for one in gathered)
        return output, gathered

    runner._model_forward = recording
    return {"states": states, "result": dataclasses.asdict(engine._execute(case))}


def _run_rank(asked, rank, answers, everyone_is_done):
    from tests.support import recorded_proposals

    variables = {"RANK": rank, "RANK_LOCAL": rank, "SIZE": len(asked["ranks"])}
    variables |= {"MASTER_IP": "127.0.0.1", "MASTER_PORT": asked["port"]}
    os.environ.update({f"VLLM_DP_{name}": str(value) for name, value in variables.items()})
    recorded_proposals.reach_into_engine_core()
    llm = started(asked["engine"], traced=bool(asked.get("traced")), records=True)
    new_proposals = recorded_proposals.since_last_asked(llm)
    tokens, proposals = [], []
    for case in asked["ranks"][rank]:
        tokens.append(generated(llm, case))
        proposals += new_proposals()
    answers[rank] = {
        "tokens": tokens,
        "proposals": [dataclasses.asdict(proposal) for proposal in proposals],
        "layers": llm.collective_rpc("attention_layers")[-1],
        "replays": llm.collective_rpc("draft_replays")[-1]["replays"],
        **counts(llm),
    }
    # The other rank may have steps to go, for which this one must be there.
    everyone_is_done.wait(timeout=60)
    # An engine core in a process of its own would be waited for, and nobody has told it to end.
    llm.llm_engine.engine_core.shutdown()


def data_parallel(asked):
    """Data parallel engines with a draft, one process each; what each made.

    Each rank has rounds of prompts. A round ends on all ranks when it ends on the last.
    """
    context = multiprocessing.get_context("fork")
    everyone_is_done = context.Barrier(len(asked["ranks"]))
    with context.Manager() as manager:
        answers = manager.dict()
        ranks = [
            context.Process(target=_run_rank, args=(asked, rank, answers, everyone_is_done))
            for rank in range(len(asked["ranks"]))
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        return [answers[rank] for rank in range(len(ranks))]


def _held_blocks(manager, request):
    """Numbers of the blocks of a request that are not given back."""
    blocks = manager.req_to_blocks.get(request.request_id, ())
    return [number for number, block in enumerate(blocks) if not block.is_null]


def _rows_of_step(scheduler, group, tokens):
    """A row for each request of a step with so many ``tokens`` of each."""
    coordinator = scheduler.kv_cache_manager.coordinator
    pool, managers = coordinator.block_pool, coordinator.single_type_managers
    used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
    counted = sum(
        len(_held_blocks(manager, request))
        for manager in managers
        for request in scheduler.requests.values()
    )
    for name, scheduled in tokens.items():
        request = scheduler.requests[name]
        yield {
            "computed": request.num_computed_tokens - scheduled,
            "in_flight": request.num_in_flight_tokens - scheduled,
            "scheduled": scheduled,
            "held": _held_blocks(managers[group], request),
            "used": used,
            "counted": counted,
        }


def draft_windows(case):
    """The blocks that requests hold after each scheduling.

    One row for each request of each step: ``computed``, tokens computed before the step;
    ``in_flight``, those of them whose step is not over; ``scheduled``, tokens of the step;
    ``held``, numbers of the blocks that the request holds in the draft's group; ``used`` and
    ``counted``, blocks that the pool has given out, and those of all requests in all groups.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    engine, rows = ProbedEngine(case), []
    (group,) = {row["kv_group"] for row in engine.layers() if row["role"] == "draft"}
    own_schedule = Scheduler.schedule

    def schedule(scheduler, *args, **kwargs):
        output = own_schedule(scheduler, *args, **kwargs)
        rows.extend(_rows_of_step(scheduler, group, output.num_scheduled_tokens))
        return output

    with mock.patch.object(Scheduler, "schedule", schedule):
        return {**engine.generate(), "rows": rows}


def _tokens_of(engine, *, until=None):
    """Name -> tokens of the requests that end; ``until``: so many steps."""
    found, steps = {}, 0
    while engine.has_unfinished_requests() and steps != until:
        steps += 1
        for output in engine.step():
            found[output.request_id] = list(output.outputs[0].token_ids)
    return found


def hostile(asked):
    """One engine with requests that no other request may notice."""
    from vllm import SamplingParams

    from tests.support.engine import _metrics

    llm = started(asked["engine"], traced=True)
    engine, prompts = llm.llm_engine, given(asked["prompts"])

    def add(name, prompt, **sampling):
        fields = {"temperature": 0.0, "max_tokens": asked["tokens"], "ignore_eos": True}
        engine.add_request(name, prompt, SamplingParams(**{**fields, **sampling}))

    def seeded():
        add("seeded", prompts[0], temperature=1.0, seed=5)
        return _tokens_of(engine)["seeded"]

    alone = seeded()
    for number, prompt in enumerate(prompts):
        add(str(number), prompt)
    _tokens_of(engine, until=3)
    beside = seeded()

    for number, prompt in enumerate(prompts):
        add(str(number), prompt, **asked["greedy"][number])
        add(f"hostile {number}", prompt, temperature=1.0)
    values = iter(asked["values"] * len(prompts))
    for name, request in core_of(llm).scheduler.requests.items():
        if name.startswith("hostile"):
            field, value = next(values)
            setattr(request.sampling_params, field, value)
    judged = _tokens_of(engine)

    refused = []
    for fields in asked["refused"]:
        biases = fields.get("logit_bias")
        if biases:
            fields = {**fields, "logit_bias": {int(token): one for token, one in biases.items()}}
        try:
            add("refused", prompts[0], **fields)
            refused.append("accepted")
            engine.abort_request(["refused"])
        except Exception as error:
            refused.append(f"{type(error).__name__}: {error}")
    metrics = _metrics(llm)
    return {
        "tokens": [judged[str(number)] for number in range(len(prompts))],
        "alone": alone,
        "beside": beside,
        "refused": refused,
        "drafts": metrics["vllm:spec_decode_num_drafts"],
        "accepted": metrics["vllm:spec_decode_num_accepted_tokens"],
    }


def isolation(arguments):
    """What target and draft were built with."""
    from vllm_ascend import ascend_config
    from vllm_ascend.ops import rotary_embedding

    from tests.support import hosts

    proposers = hosts.module("drafting.proposers")

    before, tables, of_target = {}, [], []
    make_tables = proposers.RopeTables

    def noting_tables():
        tables.append(make_tables())
        return tables[-1]

    proposers.RopeTables = noting_tables
    load = proposers._get_model

    def noting(self):
        of_target.append(ascend_config.get_ascend_config())
        before.update(copy.copy(vars(self.vllm_config.cache_config)))
        model = load(self)
        after = vars(self.vllm_config.cache_config)
        before["changes"] = {
            key: [str(value), str(after.get(key))]
            for key, value in before.items()
            if after.get(key) != value
        }
        return model

    for proposer in (proposers.DraftModelProposer, proposers.HeadProposer):
        proposer._get_model = noting
    runner = worker_of(started(arguments, traced=True)).model_runner
    target, draft = runner.vllm_config, runner.drafter._create_draft_vllm_config()
    draft_layers = runner.drafter._draft_attn_layer_names
    models = {"target": set(), "draft": set()}
    for groups in [*runner.attn_groups, runner.drafter.draft_attn_groups]:
        for group in groups:
            role = "draft" if set(group.layer_names) <= draft_layers else "target"
            models[role].add(group.get_metadata_builder().model_config.model)
    (draft_tables,) = tables
    with draft_tables.active():
        draft_cache = rotary_embedding._cos_sin_cache
    # On 0.23.0 it is the configuration's own; 0.30.0rc2 keeps it beside the configuration.
    made_from = getattr(ascend_config, "_INIT_VLLM_CONFIG", None) or of_target[0].vllm_config
    return {
        "draft_rotary_table_is_own": draft_cache is not rotary_embedding._cos_sin_cache,
        "cache_config_changes": before["changes"],
        "draft_cache_config_is_own": draft.cache_config is not target.cache_config,
        "target_block_size": target.cache_config.block_size,
        "draft_block_size": draft.cache_config.block_size,
        "target_model": target.model_config.model,
        "draft_model": target.speculative_config.draft_model_config.model,
        "ascend_config_is_the_targets": ascend_config.get_ascend_config() is of_target[0],
        "ascend_config_model": made_from.model_config.model,
        "builder_models": {role: sorted(found) for role, found in models.items()},
    }


def new_weights(asked):
    """An engine whose target or draft gets other weights while requests run.

    As trainers do it that let requests run on: pause, load, forget all cached keys, resume.
    """
    from tests.support import engine, recorded_proposals, reloading

    engine._do_not_trace()
    llm = started(asked["engine"], records=True)
    core = core_of(llm)
    proposals = recorded_proposals.of_scheduler(core.scheduler)
    names = [str(number) for number in range(len(asked["prompts"]))]
    for name, prompt in zip(names, given(asked["prompts"]), strict=True):
        llm.llm_engine.add_request(name, prompt, greedy(asked["max_tokens"]))
    tokens = {}

    def step():
        for output in llm.llm_engine.step():
            tokens[output.request_id.split("-")[0]] = list(output.outputs[0].token_ids)

    for _ in range(asked["steps"]):
        step()
    before, proposed = dict(tokens), len(proposals)
    core.pause_scheduler("keep", clear_cache=False)
    if "sent" in asked:
        refused = reloading.send_to_draft(llm, asked["path"], **asked["sent"])
    else:
        refused = None
        llm.collective_rpc("load_again", args=(asked["path"],))
    core.reset_prefix_cache(reset_running_requests=True)
    core.resume_scheduler()
    while llm.llm_engine.has_unfinished_requests():
        step()
    return {
        "before": [before.get(name, []) for name in names],
        "tokens": [tokens[name] for name in names],
        "proposals": [dataclasses.asdict(proposal) for proposal in proposals],
        "proposed_before": proposed,
        "refused": refused,
        "replays": llm.collective_rpc("draft_replays")[0]["replays"],
    }


def _values_of(position):
    """Token -> logarithm of its probability at one position."""
    return {token: value.logprob for token, value in position.items()}


def _sampling_of(fields):
    """``SamplingParams`` of these fields; a grammar is a dict of its own fields."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    if (grammar := fields.get("structured_outputs")) is not None:
        fields = {**fields, "structured_outputs": StructuredOutputsParams(**grammar)}
    return SamplingParams(**fields)


def parameters(asked):
    """One engine on requests with sampling parameters of their own."""
    llm = started(asked["engine"], traced=True)
    prompts = given([request["prompt"] for request in asked["requests"]])
    sampling = [_sampling_of(request["sampling"]) for request in asked["requests"]]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    answers = [
        {
            "tokens": [list(each.token_ids) for each in output.outputs],
            "texts": [each.text for each in output.outputs],
            "logprobs": [
                [_values_of(position) for position in each.logprobs or ()]
                for each in output.outputs
            ],
            "prompt_logprobs": [
                _values_of(position) for position in (output.prompt_logprobs or ())[1:]
            ],
        }
        for output in outputs
    ]
    return {"answers": answers, **counts(llm)}


def prompt_embeddings(asked):
    """Prompts as tokens or as embeddings, round by round.

    ``rounds``: for each a list of prompts, each with ``tokens`` and whether it is given
    ``as_embeddings``. Answers for each the tokens, and how many draft tokens were accepted by
    position.
    """
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(asked["engine"]["model"], dtype=torch.float32)
    embed = model.get_input_embeddings()
    llm = started(asked["engine"], traced=True)

    def prompt_of(prompt):
        if not prompt["as_embeddings"]:
            return {"prompt_token_ids": prompt["tokens"]}
        with torch.no_grad():
            states = embed(torch.tensor(prompt["tokens"]))
        return {"prompt_embeds": states.to(llm.model_config.dtype)}

    rounds = []
    for prompts in asked["rounds"]:
        sampling = greedy(asked["max_tokens"])
        outputs = llm.generate([prompt_of(prompt) for prompt in prompts], sampling, use_tqdm=False)
        rounds.append({"tokens": said(outputs), "accepted": counts(llm)["accepted"]})
    return rounds


async def _answer(engine, name, prompt, max_tokens):
    """Tokens of an answer to a prompt, or to a list of such that come one after the other."""
    from vllm import SamplingParams
    from vllm.engine.protocol import StreamingInput
    from vllm.inputs import TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    async def parts():
        for part in prompt:
            yield StreamingInput(prompt=TokensPrompt(prompt_token_ids=part))

    asked = parts() if isinstance(prompt[0], list) else TokensPrompt(prompt_token_ids=prompt)
    sampling = SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    tokens = []
    async for output in engine.generate(asked, sampling, name):
        tokens += output.outputs[0].token_ids
    return tokens


async def _in_parts(asked):
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**asked["engine"]))
    try:
        rounds = []
        for number, prompts in enumerate(asked["rounds"]):
            answers = await asyncio.gather(
                *(
                    _answer(engine, f"{number}-{index}", prompt, asked["max_tokens"])
                    for index, prompt in enumerate(prompts)
                ),
                return_exceptions=True,
            )
            rounds.append(
                [
                    answer if isinstance(answer, list) else f"{type(answer).__name__}: {answer}"
                    for answer in answers
                ]
            )
    finally:
        engine.shutdown()
    return rounds


def prompts_in_parts(asked):
    """An asynchronous engine on whole prompts beside one that comes in parts."""
    return asyncio.run(_in_parts(asked))


def _sampling_of_request(request):
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    grammar = request.get("grammar")
    return SamplingParams(
        temperature=0.0,
        max_tokens=request["max_tokens"],
        ignore_eos=grammar is None,
        detokenize=False,
        structured_outputs=None if grammar is None else StructuredOutputsParams(**grammar),
    )


def _add(llm, request_id, request, adapters):
    """``adapted``: the number of its adapter, from 1; 0 or nothing for none."""
    from vllm.lora.request import LoRARequest

    number = request.get("adapted", 0)
    chosen = LoRARequest(f"adapter {number}", number, adapters[number - 1]) if number else None
    prompt, sampling = {"prompt_token_ids": request["prompt"]}, _sampling_of_request(request)
    llm.llm_engine.add_request(request_id, prompt, sampling, lora_request=chosen)


def _run_requests(llm, requests, adapters):
    """All requests at once; one with ``abort_after`` is aborted once it has that many tokens.

    Returns the tokens of each, of aborted ones those that were there.
    """
    tokens = {str(index): [] for index in range(len(requests))}
    aborted = set()
    for request_id, request in zip(tokens, requests, strict=True):
        _add(llm, request_id, request, adapters)
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            # vLLM numbers requests on inside; what it gives back is what it was given.
            tokens[output.request_id] = list(output.outputs[0].token_ids)
            limit = requests[int(output.request_id)].get("abort_after")
            reached = limit is not None and len(tokens[output.request_id]) >= limit
            if reached and output.request_id not in aborted:
                aborted.add(output.request_id)
                llm.llm_engine.abort_request([output.request_id])
    return list(tokens.values())


def requests(asked):
    """One engine on requests of several sorts at once.

    Sorts: plain, with an adapter (LoRA) on the target, with a grammar, and aborted inside a
    proposal.
    """
    from tests.support import engine, graph_replays, recorded_proposals

    in_workers = asked["engine"].get("worker_extension_cls") == recorded_proposals.IN_WORKERS
    noted = not in_workers and not asked["engine"].get("async_scheduling")
    llm = started(asked["engine"], traced=True, records=noted)
    core = core_of(llm)
    pool = core.scheduler.kv_cache_manager.block_pool
    # Of graphs with adapters.
    replays = graph_replays.of_target(core.model_executor)
    host_replays = graph_replays.of_host_proposals(core.model_executor)
    free = pool.get_num_free_blocks()
    if in_workers:
        llm.collective_rpc("record_proposals")
    proposals = recorded_proposals.of_scheduler(core.scheduler)
    tokens = _run_requests(llm, asked["requests"], asked["adapters"])
    if in_workers:
        longest = max(request["max_tokens"] for request in asked["requests"])
        proposals = recorded_proposals.of_workers(llm, longest)
    metrics = engine._metrics(llm)
    return {
        "tokens": tokens,
        "proposals": [dataclasses.asdict(proposal) for proposal in proposals],
        "accepted_per_position": metrics.get("vllm:spec_decode_num_accepted_tokens_per_pos", []),
        "num_drafts": metrics.get("vllm:spec_decode_num_drafts", 0),
        "draft_replays": engine._draft_replays(llm)["replays"] + len(host_replays),
        "target_replays": sum(graph.num_active_loras > 0 for graph in replays),
        "blocks_kept": free - pool.get_num_free_blocks(),
    }


def sleep(asked):
    """An engine that sleeps between rounds of the same prompts; what each round made."""
    from tests.support import recorded_proposals

    llm = started(asked["engine"], records=True)
    proposals = recorded_proposals.of_scheduler(core_of(llm).scheduler)

    def graphs():
        return llm.collective_rpc("draft_replays")[0]

    def state():
        import torch

        return {"bytes": torch.npu.memory_allocated(), "captured": graphs()["captured"]}

    def run():
        before, replays = len(proposals), graphs()["replays"]
        return {
            "tokens": generated(llm, asked),
            "proposals": [dataclasses.asdict(proposal) for proposal in proposals[before:]],
            "replays": graphs()["replays"] - replays,
        }

    def sleep_at(level):
        awake = state()
        llm.sleep(level=level)
        asleep = state()
        if level == 2:
            # As a trainer does it: the cache has no memory while it sends weights.
            llm.wake_up(tags=["weights"])
            llm.collective_rpc("load_again")
            llm.wake_up(tags=["kv_cache"])
        else:
            llm.wake_up()
        return {"awake": awake, "asleep": asleep, "again": state()}

    answer = {"rounds": [run()], "sleeps": []}
    for level in asked["levels"]:
        answer["sleeps"].append(sleep_at(level))
        answer["rounds"].append(run())
    return answer
