# SPDX-License-Identifier: Apache-2.0
"""Runs an engine whose batch grows from one request and shrinks to one; prints its steps as JSON.

With model runner V1 its tokens and proposals alone. A step of V2 is counted by the runner's call of
the speculator. ``launches`` are those of the proposal
beside the draft's own work in eager mode, ``in_graph`` those of a replayed graph.
"""

import json
import os
import sys

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def note_steps(runner):
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


def run_load(engine, prompts, lengths):
    """One request for five steps, then all of them until the first is the last; their tokens."""
    from vllm import SamplingParams

    def add(index):
        params = SamplingParams(
            temperature=0.0, max_tokens=lengths[index], ignore_eos=True, detokenize=False
        )
        engine.add_request(str(index), {"prompt_token_ids": prompts[index]}, params)

    done = {}

    def step():
        for output in engine.step():
            if output.finished:
                done[int(output.request_id.split("-")[0])] = list(output.outputs[0].token_ids)

    add(0)
    for _ in range(5):
        step()
    for index in range(1, len(prompts)):
        add(index)
    while engine.has_unfinished_requests():
        step()
    return [done[index] for index in range(len(prompts))]


def main():
    from tests.support import engine as engines
    from tests.support import recorded_proposals

    case = json.loads(sys.argv[1])
    engines._do_not_trace()
    if case["record_drafts"]:
        recorded_proposals.hand_over_drafts()
    from vllm import LLM

    llm = LLM(**case["engine"])
    core = llm.llm_engine.engine_core.engine_core
    proposals = recorded_proposals.of_scheduler(core.scheduler) if case["record_drafts"] else []
    runner = core.model_executor.driver_worker.worker.model_runner
    is_v2 = hasattr(runner, "speculator")
    steps = note_steps(runner) if is_v2 else []
    tokens = run_load(llm.llm_engine, case["prompts"], case["lengths"])
    graphs = runner.speculator.assembly.graphs if is_v2 else None
    captured = [] if graphs is None else sorted(graphs.captured)
    made = [[proposal.context, proposal.tokens] for proposal in proposals]
    print(json.dumps({"tokens": tokens, "proposals": made, "steps": steps, "captured": captured}))


if __name__ == "__main__":
    main()
