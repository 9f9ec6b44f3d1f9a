# SPDX-License-Identifier: Apache-2.0
"""Prints, as JSON, how KV caches are planned: by an engine, or where vLLM only builds the models.

The request is a mapping of ``engine``, arguments of ``vllm.LLM``, and ``build``: whether no engine
is to be started.
"""

import json
import os
import sys

from tests.support import hosts


def describe(worker):
    """What an engine serves from: groups, layouts, pools, blocks, and those of one request."""
    runner = worker.model_runner
    blocks_of_request = hosts.module("kv_cache.planned_caches").blocks_of_request
    page_shapes_of = hosts.module("kv_cache.page_shapes").page_shapes_of
    from pydantic_core import to_jsonable_python

    config = runner.kv_cache_config
    # With model runner V2, which stays vllm-ascend's own, the worker has the plan.
    plan = runner.cache_plan if hasattr(runner, "cache_plan") else worker.planned_caches.plan
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


def start(engine):
    """An engine in this process, described once its caches are allocated."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    llm = LLM(**engine)
    core = llm.llm_engine.engine_core.engine_core
    return describe(core.model_executor.driver_worker.worker)


def main():
    request = json.loads(sys.argv[1])
    if request["build"]:
        from mkv_ascend.commands.host_process import THIS

        judged = hosts.module("judge").judged
        device = {**THIS, "memory_bytes": request["memory"]}
        result = judged({"engine": request["engine"], "device": device, "plan": False})
    else:
        result = start(request["engine"])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
