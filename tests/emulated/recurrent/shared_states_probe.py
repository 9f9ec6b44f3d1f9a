# SPDX-License-Identifier: Apache-2.0
"""Runs an engine and prints, as JSON, how often GDN metadata was built, and what differs from it.

Whatever was made for a group from another one's is built once more by vllm-ascend's builder, for
the group's own block table, and compared field by field.
"""

import dataclasses
import functools
import json
import os
import sys
from collections import Counter

from tests.support import hosts

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def leaves(value, path=""):
    """Every field of nested dataclasses by its path."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), f"{path}.{field.name}")
        for name in sorted(set(vars(value)) - {field.name for field in dataclasses.fields(value)}):
            yield from leaves(getattr(value, name), f"{path}.{name}")
    else:
        yield path, value


def plain(value):
    return value.tolist() if hasattr(value, "tolist") else repr(value)


def watch():
    """Wrap builder and sharing; returns what is seen."""
    import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
    from vllm_ascend.ops.gdn_attn_builder import AscendGDNAttentionMetadataBuilder as Builder

    sharing_class = hosts.module("backends.gdn").GatedDeltaNet

    hosts.module("patches.recurrent").install()  # its guard wants the method as vllm-ascend has it

    seen, given = {"builds": 0, "made": Counter(), "wrong": []}, {}
    build, share = Builder.build, sharing_class.for_table

    @functools.wraps(build)
    def building(self, *args, **kwargs):
        seen["builds"] += 1
        given["arguments"] = args, kwargs
        return build(self, *args, **kwargs)

    def sharing(self, built, table, lengths):
        made = share(self, built, table, lengths)
        before = {path: plain(value) for path, value in leaves(made)}
        args, kwargs = given["arguments"]
        common = kwargs["common_attn_metadata"].replace(block_table_tensor=table)
        own = build(self.builder, *args, **{**kwargs, "common_attn_metadata": common})
        wanted = {path: plain(value) for path, value in leaves(own)}
        seen["wrong"] += [path for path in wanted if before.get(path) != wanted[path]]
        kinds = [n for n in ("prefills", "decodes", "spec_decodes") if getattr(own, f"num_{n}")]
        seen["made"]["+".join(kinds)] += 1
        return made

    Builder.build, sharing_class.for_table = building, sharing
    return seen


def main():
    from vllm import LLM, SamplingParams

    case, seen = json.loads(sys.argv[1]), watch()
    llm = LLM(**case["engine"])
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
    make, passes = runner._build_attention_metadata, []

    def noted(*args, **kwargs):
        passes.append(kwargs["num_reqs"])
        return make(*args, **kwargs)

    runner._build_attention_metadata = noted
    seen["builds"] = 0
    seen["made"].clear()
    sampling = SamplingParams(
        temperature=0.0, max_tokens=case["max_tokens"], ignore_eos=True, detokenize=False
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in case["prompts"]]
    llm.generate(prompts, sampling, use_tqdm=False)
    groups = [group.layer_names for group in runner.kv_cache_config.kv_cache_groups]
    print(json.dumps({**seen, "passes": len(passes), "groups": groups}))


if __name__ == "__main__":
    main()
