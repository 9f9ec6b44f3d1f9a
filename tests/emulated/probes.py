# SPDX-License-Identifier: Apache-2.0
"""What tests have run in processes of their own (``tests/support/probe.py``); see ``drafting``."""

import dataclasses
import functools
import itertools
import json
import os
from collections import Counter
from unittest import mock

from tests.support.probe import (
    ProbedEngine,
    core_of,
    generated,
    given,
    said,
    started,
    worker_of,
)

ALIGNMENT = 2 << 20
SKIPPED_STEPS = 3


def cell(name):
    """The verdict of a cell of the matrix."""
    from benchmarks.matrix import cells, running

    (found,) = cells.find_cells([name])
    return dataclasses.asdict(running.run(found, running.OURS))


def embeddings(asked):
    """Embeddings of prompts by an engine without a draft."""
    llm = started({"runner": "pooling", **asked["engine"]}, traced=True)
    outputs = llm.encode(given(asked["prompts"]), pooling_task="embed", use_tqdm=False)
    return [output.outputs.data.tolist() for output in outputs]


def _logprob_values(positions):
    """vLLM's Logprob objects as numbers; None where a position has none (the first of a prompt)."""
    return [
        None if position is None else {str(token): item.logprob for token, item in position.items()}
        for position in positions or []
    ]


def sampling(request):
    """One engine that answers batches of requests, each with its own sampling parameters.

    ``batches``: lists of ``prompt`` and ``sampling``. Answers, per batch and request, the tokens
    and the log-probabilities that were asked for.
    """
    from vllm import SamplingParams

    from tests.support.engine import compared_dtype

    arguments = {"skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 512}
    arguments |= {"dtype": compared_dtype(), "kv_cache_memory_bytes": 64 << 20}
    llm = started({"model": request["model"], **arguments, **request["engine"]})
    answers = []
    for batch in request["batches"]:
        parameters = [
            SamplingParams(**{"ignore_eos": True, "detokenize": False, **item["sampling"]})
            for item in batch
        ]
        prompts = given([item["prompt"] for item in batch])
        outputs = llm.generate(prompts, parameters, use_tqdm=False)
        answers.append(
            [
                {
                    "tokens": list(output.outputs[0].token_ids),
                    "logprobs": _logprob_values(output.outputs[0].logprobs),
                    "prompt_logprobs": _logprob_values(output.prompt_logprobs),
                }
                for output in outputs
            ]
        )
    return answers


def broken_graphs(case):
    """An engine in graphs, of whose draft some are broken then."""
    from tests.support import hosts

    updates = hosts.module("drafting.launches").Updates
    run_updates = updates.run

    def frozen(updates, stream, context, config, lengths):
        """Each captured launch has the same lengths in every replay: of one token."""
        one_token = [[min(length, 1) for length in of_pass] for of_pass in lengths]
        run_updates(updates, stream, context, config, one_token)

    engine = ProbedEngine(case)
    drafter = engine.runner.drafter

    def generate():
        replays = drafter.assembly.graphs.replays
        result = engine.generate()
        return {**result, "replays": drafter.assembly.graphs.replays - replays}

    result = {"whole": generate()}
    with mock.patch.object(updates, "run", frozen):
        result["frozen"] = generate()
    # Token ids have another place than the graphs know, and the old one is free.
    draft = drafter.assembly.draft
    token_ids = draft.buffers.token_ids.clone()
    draft.buffers = dataclasses.replace(draft.buffers, token_ids=token_ids)
    drafter.input_ids = draft.buffers.token_ids
    try:
        result["moved"] = generate()
    except RuntimeError as error:
        result["moved"] = str(error)
    print(json.dumps(result), flush=True)
    # The stream of the replay that failed never ends.
    os._exit(0)


def stale_blocks(case):
    """Drafts twice, the second time in blocks full of NaN."""
    engine = ProbedEngine(case)
    result = {"clean": engine.generate()}
    for memory in engine.runner._cache_memory.raw:
        if memory is not None:
            memory.fill_(-1)  # of every type of floating point that is NaN
    return {**result, "stale": engine.generate()}


def _described_worker(worker):
    """What an engine serves from: groups, layouts, pools, blocks, and those of one request."""
    from pydantic_core import to_jsonable_python

    from tests.support import hosts

    runner = worker.model_runner
    blocks_of_request = hosts.module("kv_cache.planned_caches").blocks_of_request
    page_shapes_of = hosts.module("kv_cache.page_shapes").page_shapes_of
    config = runner.kv_cache_config
    # Model runner V2 has it with its caches.
    plan = runner.cache_plan if hasattr(runner, "cache_plan") else runner.planned_caches.plan
    layouts = {layout.layer: to_jsonable_python(layout) for layout in plan.layers}
    return {
        "groups": [
            [name for name in group.layer_names if name in layouts]
            for group in config.kv_cache_groups
        ],
        "admission_blocks": [
            shape.pages(blocks_of_request(group.kv_cache_spec, runner.vllm_config))
            for group, shape in zip(config.kv_cache_groups, page_shapes_of(config), strict=True)
        ],
        "layouts": layouts,
        "backends": {
            row["name"]: row["backend"]
            for row in worker.attention_layers()
            if row["name"] in layouts
        },
        "pools": [to_jsonable_python(pool) for pool in plan.pools],
        "num_blocks": config.num_blocks,
        "counted_bytes": sum(tensor.size for tensor in config.kv_cache_tensors),
        "allocated": list(plan.buffers),
    }


def planned(request):
    """How KV caches are planned: by an engine, or, if to ``build``, where vLLM builds the models.

    ``engine``: arguments of ``vllm.LLM``.
    """
    if not request["build"]:
        return _described_worker(worker_of(started(request["engine"], traced=True)))
    from mkv_ascend.commands.host_process import THIS
    from tests.support import hosts

    device = {**THIS, "memory_bytes": request["memory"]}
    question = {"engine": request["engine"], "device": device, "plan": False}
    return hosts.module("judge").judged(question)


def _described_tensors(caches):
    return {
        name: [
            [list(part.shape), str(part.dtype), list(part.stride()), part.nbytes] for part in cache
        ]
        for name, cache in caches.items()
    }


def _stock_caches(runner):
    """The caches as vllm-ascend's own methods make them, or the error that they raise."""
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

    config = runner.kv_cache_config
    try:
        raw = NPUModelRunner._allocate_kv_cache_tensors(runner, config)
        return NPUModelRunner._reshape_kv_cache_tensors(runner, config, raw)
    except (AssertionError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


def caches(arguments):
    """An engine's KV caches: groups, tensors, and aliases.

    vllm-ascend's own two methods then make the caches again for the same groups, to compare.
    """
    from tests.support.caches.planned_runner import aliases

    runner = worker_of(started(arguments, traced=True)).model_runner
    config = runner.kv_cache_config
    layers = runner.compilation_config.static_forward_context
    names = [name for group in config.kv_cache_groups for name in group.layer_names]
    own = {name: layers[name].kv_cache for name in names}
    for part in (part for cache in own.values() for part in cache):
        part.zero_()
    described = _described_tensors(own)
    theirs = _stock_caches(runner)
    return {
        "planned": runner.cache_plan is not None,
        "groups": [group.layer_names for group in config.kv_cache_groups],
        "num_blocks": config.num_blocks,
        "counted_bytes": sum(tensor.size for tensor in config.kv_cache_tensors),
        "plan_bytes": runner.cache_plan.total_bytes if runner.cache_plan else None,
        "caches": described,
        "stock_caches": theirs if isinstance(theirs, str) else _described_tensors(theirs),
        "aliases": aliases(own, config.num_blocks, getattr(config, "page_shapes", {})),
    }


def _described_cache(cache):
    """What connectors read of the tensors of one layer."""
    starts = [part.untyped_storage().data_ptr() for part in cache]
    return {
        "container": type(cache).__name__,
        "tensors": [[list(part.shape), str(part.dtype), list(part.stride())] for part in cache],
        "contiguous": [part.is_contiguous() for part in cache],
        "misaligned": [part.data_ptr() % ALIGNMENT for part in cache],
        "storages": len(set(starts)),
        "storage_bytes": [part.untyped_storage().nbytes() for part in cache],
    }


def _by_address(tensor, num_blocks):
    """(num_blocks, bytes of a block) from the tensor's address on."""
    import torch

    page = tensor.shape[0] // num_blocks * tensor.stride(0) * tensor.element_size()
    storage = tensor.untyped_storage()
    start = tensor.data_ptr() - storage.data_ptr()
    whole = torch.empty(0, dtype=torch.int8, device=tensor.device)
    return whole.set_(storage, start, (num_blocks * page,)).view(num_blocks, page)


def _wrong_blocks(caches, num_blocks):
    """(layer, block) where the bytes by address are not exactly the block's."""
    import torch

    wrong = []
    for part in (part for cache in caches.values() for part in cache):
        part.zero_()
    for name, cache in caches.items():
        for part in cache:
            for block in (0, num_blocks // 2, num_blocks - 1):
                _by_address(part, num_blocks)[block].fill_(1)
                filled = part.view(num_blocks, -1).view(torch.int8).cpu().ne(0)
                if not filled[block].all() or filled.any(dim=1).sum() != 1:
                    wrong.append([name, block])
                part.zero_()
    return wrong


def transfer(arguments):
    """What a connector that records was given.

    Bytes are addressed as connectors do, by the address of a tensor and the bytes of a block. The
    same caches as vllm-ascend's own two methods make them are described beside, to compare.
    """
    from tests.emulated.kv_transfer.recording_connector import REGISTERED

    runner = worker_of(started(arguments, traced=True)).model_runner
    (own,) = REGISTERED
    theirs = _stock_caches(runner)
    config = runner.kv_cache_config
    storages = [part.untyped_storage() for cache in own.values() for part in cache]
    if not isinstance(theirs, str):
        theirs = {name: _described_cache(cache) for name, cache in theirs.items()}
    return {
        "planned": runner.cache_plan is not None,
        "groups": len(config.kv_cache_groups),
        "num_blocks": config.num_blocks,
        "registered": {name: _described_cache(cache) for name, cache in own.items()},
        "stock": theirs,
        "held_bytes": sum({one.data_ptr(): one.nbytes() for one in storages}.values()),
        "wrong_blocks": _wrong_blocks(own, config.num_blocks),
    }


def hidden_states(asked):
    """How far off hidden states are that vLLM's connector for it extracts; the judge is HF.

    ``rounds``: prompts that are served together; ``layer``: whose states.
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM
    from vllm import SamplingParams

    llm = started(asked["engine"], traced=True)
    runner = worker_of(llm).model_runner
    parameters = SamplingParams(
        max_tokens=asked["max_tokens"], temperature=0.0, ignore_eos=True, detokenize=False
    )
    outputs = []
    # States are saved in the step after a request's last, so one more request ends them all.
    for prompts in [*asked["rounds"], [asked["rounds"][0][0][:4]]]:
        outputs += llm.generate(given(prompts), parameters, use_tqdm=False)
    outputs.pop()
    planned = getattr(runner, "cache_plan", None) is not None
    groups = len(runner.kv_cache_config.kv_cache_groups)
    # Written by threads of the connector, which end with the engine at the latest.
    core_of(llm).shutdown()
    model = AutoModelForCausalLM.from_pretrained(
        asked["engine"]["model"], dtype=torch.float32, attn_implementation="eager"
    ).eval()
    errors, scales = [], []
    for output in outputs:
        prompt = output.prompt_token_ids
        saved = load_file(output.kv_transfer_params["hidden_states_path"])
        assert saved["token_ids"].tolist() == prompt
        with torch.no_grad():
            states = model(torch.tensor([prompt]), output_hidden_states=True).hidden_states
        expected = states[asked["layer"]][0]
        errors.append(float((saved["hidden_states"][:, 0].float() - expected).abs().max()))
        scales.append(float(expected.abs().max()))
    return {"planned": planned, "groups": groups, "errors": errors, "scales": scales}


def _leaves(value, path=""):
    """Every field of nested dataclasses by its path."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}")
        for name in sorted(set(vars(value)) - {field.name for field in dataclasses.fields(value)}):
            yield from _leaves(getattr(value, name), f"{path}.{name}")
    else:
        yield path, value


def _plain(value):
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def _watch_gdn():
    """Wrap builder and sharing; returns what is seen."""
    import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
    from vllm_ascend.ops.gdn_attn_builder import AscendGDNAttentionMetadataBuilder as Builder

    from tests.support import hosts

    sharing_class = hosts.module("backends.gdn").GatedDeltaNet

    hosts.module("patches.recurrent").install()  # its guard wants the method as vllm-ascend has it

    seen, arguments = {"builds": 0, "made": Counter(), "wrong": []}, {}
    build, share = Builder.build, sharing_class.for_table

    @functools.wraps(build)
    def building(self, *args, **kwargs):
        seen["builds"] += 1
        arguments["given"] = args, kwargs
        return build(self, *args, **kwargs)

    def sharing(self, built, table, lengths):
        made = share(self, built, table, lengths)
        before = {path: _plain(value) for path, value in _leaves(made)}
        args, kwargs = arguments["given"]
        common = kwargs["common_attn_metadata"].replace(block_table_tensor=table)
        own = build(self.builder, *args, **{**kwargs, "common_attn_metadata": common})
        wanted = {path: _plain(value) for path, value in _leaves(own)}
        seen["wrong"] += [path for path in wanted if before.get(path) != wanted[path]]
        kinds = [n for n in ("prefills", "decodes", "spec_decodes") if getattr(own, f"num_{n}")]
        seen["made"]["+".join(kinds)] += 1
        return made

    Builder.build, sharing_class.for_table = building, sharing
    return seen


def shared_states(case):
    """How often GDN metadata was built, and what differs from it.

    Whatever was made for a group from another one's is built once more by vllm-ascend's builder,
    for the group's own block table, and compared field by field.
    """
    seen = _watch_gdn()
    llm = started(case["engine"], traced=True)
    runner = worker_of(llm).model_runner
    make, passes = runner._build_attention_metadata, []

    def noted(*args, **kwargs):
        passes.append(kwargs["num_reqs"])
        return make(*args, **kwargs)

    runner._build_attention_metadata = noted
    seen["builds"] = 0
    seen["made"].clear()
    generated(llm, case)
    groups = [group.layer_names for group in runner.kv_cache_config.kv_cache_groups]
    return {**seen, "passes": len(passes), "groups": groups}


def skipped_requests(case):
    """An engine whose last request sits out each third step, with and without what is restored.

    A step leaves a request out when chunks of others take all of its tokens; here it is hidden from
    the scheduler for the step, so that it happens often and everywhere. One request is preempted
    besides.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    from mkv_ascend.adapters.common.batch_rows import SkippedRequests
    from tests.support.preemption import PreemptionForcer

    steps, restored = itertools.count(), []
    own_schedule, own_restore = Scheduler.schedule, SkippedRequests.restore

    def schedule(scheduler, *args, **kwargs):
        hides = next(steps) % SKIPPED_STEPS == 0 and len(scheduler.running) > 1
        hidden = [scheduler.running.pop()] if hides else []
        try:
            return own_schedule(scheduler, *args, **kwargs)
        finally:
            scheduler.running.extend(hidden)

    def restore(skipped, runner):
        back = skipped._accepted.keys() & runner.input_batch.req_id_to_index.keys()
        restored.extend(skipped._accepted[request] for request in back)
        own_restore(skipped, runner)

    engine = ProbedEngine(case)
    with mock.patch.object(Scheduler, "schedule", schedule):
        forcer = PreemptionForcer(engine.scheduler)
        with mock.patch.object(SkippedRequests, "restore", restore):
            whole = engine.generate()
        with mock.patch.object(SkippedRequests, "restore"):
            lost = engine.generate()
    answer = {"whole": whole, "lost": lost, "restored": restored}
    return {**answer, "preempted": len(forcer.contexts)}


def _note_steps(runner):
    """Returns the list that fills with a row per step."""
    from emulated_npu import counters

    speculator, steps, replayed = runner.speculator, [], []
    graphs = runner.cudagraph_manager
    propose, run = speculator.propose, graphs.run_fullgraph

    def noted_run(desc):
        replayed.append(desc)
        return run(desc)

    def noted_propose(batch, *args, **kwargs):
        of_drafts, before = speculator.assembly.graphs, counters.snapshot()
        earlier = 0 if of_drafts is None else of_drafts.replays
        drafted = propose(batch, *args, **kwargs)
        if kwargs.get("dummy_run"):
            return drafted
        cost = counters.snapshot() - before
        steps.append(
            {
                "requests": batch.num_reqs,
                "rows": batch.num_scheduled_tokens.tolist(),
                "prompts": bool(batch.is_prefilling_np.any()),
                "verify_replays": len(replayed),
                "draft_replays": 0 if of_drafts is None else of_drafts.replays - earlier,
                "launches": dict(cost.launches),
                "in_graph": dict(cost.graph_launches),
            }
        )
        replayed.clear()
        return drafted

    speculator.propose, graphs.run_fullgraph = noted_propose, noted_run
    return steps


def _run_load(engine, prompts, lengths):
    """One request for five steps, then all of them until the first is the last; their tokens."""
    from tests.support.probe import greedy

    def add(index):
        engine.add_request(str(index), given(prompts)[index], greedy(lengths[index]))

    done = {}

    def step():
        for output in engine.step():
            if output.finished:
                (done[int(output.request_id.split("-")[0])],) = said([output])

    add(0)
    for _ in range(5):
        step()
    for index in range(1, len(prompts)):
        add(index)
    while engine.has_unfinished_requests():
        step()
    return [done[index] for index in range(len(prompts))]


def load(case):
    """An engine whose batch grows from one request and shrinks to one; its steps.

    With model runner V1 its tokens and proposals alone. A step of V2 is counted by the runner's
    call of the speculator. ``launches`` are those of the proposal beside the draft's own work in
    eager mode, ``in_graph`` those of a replayed graph.
    """
    from tests.support import engine, recorded_proposals

    engine._do_not_trace()
    if case["record_drafts"]:
        recorded_proposals.hand_over_drafts()
    llm = started(case["engine"])
    scheduler = core_of(llm).scheduler
    proposals = recorded_proposals.of_scheduler(scheduler) if case["record_drafts"] else []
    runner = worker_of(llm).model_runner
    is_v2 = hasattr(runner, "speculator")
    steps = _note_steps(runner) if is_v2 else []
    tokens = _run_load(llm.llm_engine, case["prompts"], case["lengths"])
    graphs = runner.speculator.assembly.graphs if is_v2 else None
    captured = [] if graphs is None else sorted(graphs.captured)
    made = [[proposal.context, proposal.tokens] for proposal in proposals]
    return {"tokens": tokens, "proposals": made, "steps": steps, "captured": captured}
