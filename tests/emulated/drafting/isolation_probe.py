# SPDX-License-Identifier: Apache-2.0
"""Starts an engine with a draft and prints, as JSON, what target and draft were built with."""

import copy
import json
import os
import sys

from tests.support import hosts

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def main():
    from vllm import LLM
    from vllm_ascend import ascend_config
    from vllm_ascend.ops import rotary_embedding

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
    llm = LLM(**json.loads(sys.argv[1]))
    core = llm.llm_engine.engine_core.engine_core
    runner = core.model_executor.driver_worker.worker.model_runner
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
    result = {
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
    print(json.dumps(result))


if __name__ == "__main__":
    main()
