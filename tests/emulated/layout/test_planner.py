# SPDX-License-Identifier: Apache-2.0
"""What is planned before the start is what an engine plans and its worker allocates, to the byte.

One pair of every family is planned twice: from what vLLM builds without weights, and by an engine.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from mkv_ascend.layout.kind import Kind
from mkv_ascend.layout.planning import PlanInputs, plan
from tests.emulated import probes
from tests.support import hosts, programs
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

MIB = 2**20
MEMORY = 64 * MIB
TOKENS = 512


@dataclass(frozen=True)
class Pair:
    """A target and its draft. ``variables``: of the engine's process; ``options``: of ours."""

    target: str
    method: str | None = "draft_model"
    draft: str | None = "llama_draft"
    engine: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)

    @property
    def on_v2(self):
        """Whether model runner V2 runs the engine."""
        return self.variables.items() >= RUNNER_V2.items()

    def arguments(self):
        """Arguments of ``vllm.LLM``: planning needs the weights' shapes at most."""
        speculative = None
        if self.method is not None:
            speculative = {"method": self.method, "num_speculative_tokens": 3}
            if self.draft is not None:
                speculative["model"] = str(model_directory(self.draft))
        return {
            "model": str(model_directory(self.target)),
            "speculative_config": speculative,
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "enforce_eager": True,
            "max_model_len": TOKENS,
            "max_num_seqs": 8,
            "max_num_batched_tokens": TOKENS,
            "kv_cache_memory_bytes": MEMORY,
            "additional_config": {"mkv_ascend": self.options},
            **self.engine,
        }


WINDOW = {"drafting": {"window": 100}}
SHORT_STEPS = {"max_num_batched_tokens": 128}
"""A window holds its own tokens and those of steps under way, as many of these as a host counts."""
V4 = {"dtype": "bfloat16"}
ASKED_BLOCKS = {"block_size": 256}
WITHOUT_CHUNKS = {"enable_prefix_caching": False, "enable_chunked_prefill": False}
"""vllm-ascend takes 128, whatever is asked for, but beside states or without both of these."""
WITHOUT_IMAGES = {"language_model_only": True}
WITH_TRITON = {"EMULATED_NPU_TRITON": "1"}
"""As on an NPU. Attention of Qwen3.5 takes an operator that vllm-ascend has in Triton alone;
GPT-OSS in bfloat16 has rotary tables in float32, which 0.30.0rc2 takes in Triton alone."""
ROTARY_OF_16 = {"EMULATED_NPU_STRICT": "0"} if hosts.INDEXER_IS_A_LAYER else {}
"""The tiny model rotates 16 numbers of a head. The operator that vllm-ascend 0.30.0rc2 takes where
there is no Triton documents multiples of 32 in bfloat16. Plans do not depend on it."""
PAIRS = {
    "dense": Pair("llama_target", draft="gemma3_draft"),
    "eagle3": Pair("llama_target", "eagle3", "llama_eagle3"),
    "window of the draft": Pair("gemma3", engine=SHORT_STEPS, options=WINDOW),
    "window+full": Pair("gemma3", engine=SHORT_STEPS),
    "gpt-oss": Pair("gpt_oss", draft="gpt_oss_draft", variables=WITH_TRITON),
    "mla": Pair("deepseek_v2_target"),
    "mla, windows": Pair("deepseek_v2_target", draft="gemma3_draft", engine=SHORT_STEPS),
    "sparse mla": Pair("deepseek_v32_target", draft="gemma3_draft"),
    "gdn": Pair("qwen3_next", draft="gemma3_draft", variables=ROTARY_OF_16),
    "gdn, gdn": Pair("qwen3_next", draft="qwen3_next_draft", variables=ROTARY_OF_16),
    "dense, gdn": Pair("llama_target", draft="qwen3_next_draft", variables=ROTARY_OF_16),
    "mamba2": Pair("granite4"),
    "short conv": Pair("lfm2", draft="gemma3_draft"),
    "qwen3-next, mtp": Pair("qwen3_next", "mtp", "qwen3_next_mtp", variables=ROTARY_OF_16),
    "qwen3.5": Pair("qwen3_5", engine=WITHOUT_IMAGES, variables=WITH_TRITON),
    "dflash": Pair("gpt_oss", "dflash", "gpt_oss_dflash", variables=WITH_TRITON),
    "deepseek-v4": Pair("deepseek_v4_fitted", engine=V4),
    "deepseek-v4, windows": Pair("deepseek_v4_fitted", draft="gemma3_draft", engine=V4),
    "deepseek-v4, mtp": Pair("deepseek_v4_fitted", "mtp", None, engine=V4),
    "deepseek-v4 alone": Pair("deepseek_v4_fitted", None, None, engine=V4),
    "window+full alone": Pair("gemma3", None, None),
    "gdn alone": Pair("qwen3_next", None, None, variables=ROTARY_OF_16),
    "mamba2 alone": Pair("granite4", None, None),
}


if "v2" in hosts.ADAPTER.RUNNERS:
    ON_V2 = ("dense", "eagle3", "gpt-oss", "mla, windows", "sparse mla", "gdn", "qwen3-next, mtp")
    PAIRS |= {
        f"{name}, v2": replace(PAIRS[name], variables={**PAIRS[name].variables, **RUNNER_V2})
        for name in ON_V2
    }
if not hosts.PLANS_DEEPSEEK_V4:
    PAIRS = {name: pair for name, pair in PAIRS.items() if not name.startswith("deepseek-v4")}


def planned_by_check(pair_or_engine, variables=None, memory=None):
    """The plan of models that vLLM builds without memory, as ``mkv-ascend check`` has it.

    ``memory``: bytes of a device; None: of the emulated ones here.
    """
    request = {"engine": pair_or_engine, "build": True, "memory": memory}
    answer = programs.answer_of(probes.planned, request, variables or {})
    assert answer["answer"] == "served", answer
    assert answer["unplanned"] == ""
    return plan(TypeAdapter(PlanInputs).validate_python(answer["inputs"]))


def is_unnamed(layer, kind=None):
    """Whether the layer's own class names a backend there that the catalog does not have."""
    if kind is Kind.COMPRESSED_MLA:
        return not hosts.PLANS_DEEPSEEK_V4
    return hosts.INDEXER_IS_A_LAYER and layer.endswith(("indexer.k_cache", "linear_attn"))


def served(planned):
    """As ``probes.planned`` has it."""
    blocks = planned.num_blocks(MEMORY)
    bound = planned.plan.bind(blocks)
    kinds = {layout.layer: layout.kind for layout in planned.plan.layers}
    return {
        "groups": [list(group.layers) for group in planned.plan.groups],
        "admission_blocks": list(planned.admission_pages),
        "layouts": {layout.layer: to_jsonable_python(layout) for layout in planned.plan.layers},
        "backends": {
            name: backend
            for name, backend in planned.backends.items()
            if not is_unnamed(name, kinds[name])
        },
        "pools": [to_jsonable_python(pool) for pool in planned.plan.pools],
        "num_blocks": blocks,
        "counted_bytes": blocks * planned.plan.bytes_per_block,
        "allocated": list(bound.buffers),
    }


@pytest.mark.core(cases=["mla, windows*"])
@pytest.mark.host(
    "0.23",
    cases=[
        "*-next, mtp",
        "*-oss",
        "dense",
        "dense, gdn",
        "dflash",
        "gdn",
        "gdn alone",
        "mamba2",
        "mamba2 alone",
        "mla",
        "mla, windows",
        "qwen3.5",
        "short conv",
        "sparse mla",
        "window of the draft",
        "window+full",
        "window+full alone",
    ],
)
@pytest.mark.nightly(
    "other cases of it stay",
    cases=["*-next, mtp, v2", "*-oss, v2", "dense, v2", "eagle3, v2", "gdn, v2", "sparse mla, v2"],
)
@pytest.mark.parametrize("name", PAIRS)
def test_what_check_plans_is_what_an_engine_allocates(name):
    pair = PAIRS[name]
    request = {"engine": pair.arguments(), "build": False}
    engine = programs.answer_of(probes.planned, request, pair.variables)
    variables = RUNNER_V2 if pair.on_v2 else {}
    assert served(planned_by_check(pair.arguments(), variables)) == engine


ASKED = {
    "not taken": Pair("llama_target", draft="gemma3_draft", engine={"block_size": 100}),
    "without chunks": Pair("llama_target", engine={**ASKED_BLOCKS, **WITHOUT_CHUNKS}),
    "beside states": Pair("granite4", engine=ASKED_BLOCKS),
}
if hosts.PLANS_DEEPSEEK_V4:
    ASKED["deepseek-v4"] = Pair("deepseek_v4_fitted", engine={**V4, "block_size": 128})


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", ASKED)
def test_blocks_that_are_asked_for_are_planned_where_the_host_takes_them(name):
    arguments = ASKED[name].arguments()
    engine = programs.answer_of(probes.planned, {"engine": arguments, "build": False})
    assert served(planned_by_check(arguments)) == engine


# Beside another model's layers it is planned there, too; its worker takes a process of its own.
OF_ANOTHER = V4 if hosts.PLANS_DEEPSEEK_V4 else {**V4, "distributed_executor_backend": "mp"}


def test_weights_and_ranks_that_are_not_there_are_built(tmp_path):
    """Two ranks, rotary tables of DeepSeek's kind, a draft of more bytes than this device has."""
    arguments = Pair("deepseek_v2_target", draft="gpt_oss_draft", engine=SHORT_STEPS).arguments()
    draft = arguments["speculative_config"]
    for folder in ("target", "draft"):
        (tmp_path / folder).mkdir()
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale_all_dim": 1.0}
    yarn["original_max_position_embeddings"] = 256
    target = copy_with(arguments["model"], tmp_path / "target", rope_parameters=yarn)
    draft["model"] = str(copy_with(draft["model"], tmp_path / "draft", intermediate_size=2**26))
    engine = {**arguments, "model": str(target), "tensor_parallel_size": 2}
    planned = planned_by_check(engine, memory=256 << 30)
    assert planned.plan.bytes_per_block


def test_rotary_tables_larger_than_the_device_are_built(tmp_path):
    """DeepSeek-V4's have a row for each position of the longest context."""
    arguments = Pair("deepseek_v4_fitted", draft="gemma3_draft", engine=OF_ANOTHER).arguments()
    model = copy_with(arguments["model"], tmp_path, max_position_embeddings=2**25)
    assert planned_by_check({**arguments, "model": str(model)}).plan.bytes_per_block


def copy_with(model, folder, **values):
    """A folder with the config.json of ``model``, changed so."""
    config = json.loads((Path(model) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    return folder
