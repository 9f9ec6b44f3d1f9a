# SPDX-License-Identifier: Apache-2.0
"""Runs an engine and prints, as JSON, what its proposals and its target's passes cost, by count.

A proposal is ``_propose`` without the draft's own work: its forward, logits, sampling and feeding
back. In the target's pass only the making of slots and metadata is counted.
"""

import json
import os
import sys
from collections import Counter

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

OWN_WORK = ("forward", "sample", "feed_back")


class Meter:
    """Adds up what the functions it wraps cost, each outermost call once."""

    def __init__(self):
        self.calls = []
        self._inside = False

    def wrap(self, owner, name):
        function = getattr(owner, name)

        def measured(*args, **kwargs):
            if self._inside:
                return function(*args, **kwargs)
            self._inside = True
            before = counts()
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False
                self.calls.append(counts() - before)

        setattr(owner, name, measured)

    def take(self):
        taken, self.calls = self.calls, []
        return taken


def counts():
    from emulated_npu import counters

    return counters.snapshot()


def launches_of(snapshots):
    total = Counter()
    for snapshot in snapshots:
        total.update(snapshot.launches)
    return total


def measure_proposals(drafter):
    """Wrap the drafter's methods; returns the list that fills with one row per proposal."""
    own, rows, assembly = Meter(), [], drafter.assembly
    for name in OWN_WORK:
        own.wrap(assembly.draft, name)
    # Model runner V2 has a method without the underscore.
    name = "_propose" if hasattr(drafter, "_propose") else "propose"
    propose = getattr(drafter, name)

    def measured(*args, **kwargs):
        own.take()
        builds, before = assembly.proposal.needs.builds, counts()
        drafted = propose(*args, **kwargs)
        whole = counts() - before
        inner = own.take()
        rows.append(
            {
                "launches": dict(launches_of([whole]) - launches_of(inner)),
                "host_reads": whole.total_host_reads - sum(c.total_host_reads for c in inner),
                "waited_for": sum(times for times, _ in whole.asynchronous_reads.values()),
                "builds": assembly.proposal.needs.builds - builds,
                "rows": list(drafted.shape),
            }
        )
        return drafted

    setattr(drafter, name, measured)
    return rows


def measure_target(runner):
    """Wrap what makes slots and metadata in the target's pass."""
    meter = Meter()
    if hasattr(runner, "model_state"):  # model runner V2
        meter.wrap(runner.model_state, "prepare_attn")
        meter.wrap(runner.block_tables, "compute_slot_mappings")
    else:
        meter.wrap(runner, "_build_attention_metadata")
        meter.wrap(runner.input_batch.block_table, "compute_slot_mapping")
    return meter


def drafter_of(runner):
    """What drafts, in either model runner; None without a draft."""
    return getattr(runner, "speculator", None) or getattr(runner, "drafter", None)


def count_builds():
    """Note each run of vllm-ascend's builder; before an engine takes hold of the method."""
    import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
    from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder

    builds, build = [], AscendAttentionMetadataBuilder.build

    def noted(self, *args, **kwargs):
        builds.append(type(self).__name__)
        return build(self, *args, **kwargs)

    AscendAttentionMetadataBuilder.build = noted
    return builds


def main():
    from vllm import LLM, SamplingParams

    case, builds = json.loads(sys.argv[1]), count_builds()
    if not case["engine"]["enforce_eager"]:
        from tests.support import engine

        engine._do_not_trace()
    llm = LLM(**case["engine"])
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    drafter = drafter_of(runner)
    proposals = measure_proposals(drafter) if drafter else []
    meter = measure_target(runner)
    builds.clear()
    sampling = SamplingParams(
        temperature=0.0, max_tokens=case["max_tokens"], ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in case["prompts"]]
    llm.generate(prompts, sampling, use_tqdm=False)
    # Two calls a pass; the last passes are plain decodes of every request.
    target = launches_of(meter.calls[-2:])
    of_proposals = sum(row["builds"] for row in proposals)
    result = {
        "proposals": proposals,
        "target": {
            "launches": dict(target),
            "builds": len(builds) - of_proposals,
            "passes": len(meter.calls) // 2,
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
