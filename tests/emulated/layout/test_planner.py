# SPDX-License-Identifier: Apache-2.0
"""What is explained before the start is what an engine plans and its worker allocates, to the byte.

One pair of every family is planned three times: from the numbers of the two config.json files, from
what vLLM builds without weights, and by an engine. For models with images, and for other depths of
a family, only the first two are compared.
"""

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from mkv_ascend import cli
from mkv_ascend.checks import from_config
from mkv_ascend.checks.language_part import DECODERS
from mkv_ascend.checks.planning_inputs import Asked
from mkv_ascend.commands import from_vllm
from mkv_ascend.layout.kind import Kind
from mkv_ascend.layout.planning import plan
from mkv_ascend.layout.serialization import to_dict
from tests.support import hosts, image_models, programs
from tests.support.predictors import CLASSES, write_config
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

PROBE = Path(__file__).parent / "planner_probe.py"
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


def by_numbers(asked):
    """What the numbers of the config.json files tell of an engine on this host."""
    return from_config.find(asked, hosts.ADAPTER.RULES)


def is_unnamed(layer, kind=None):
    """Whether the layer's own class names a backend there that the catalog does not have."""
    if kind is Kind.COMPRESSED_MLA:
        return not hosts.PLANS_DEEPSEEK_V4
    return hosts.INDEXER_IS_A_LAYER and layer.endswith(("indexer.k_cache", "linear_attn"))


def served(planned):
    """As ``planner_probe.describe`` has it."""
    blocks = planned.num_blocks(MEMORY)
    bound = planned.plan.bind(blocks)
    kinds = {layout.layer: layout.kind for layout in planned.plan.layers}
    return {
        "groups": [list(group.layers) for group in planned.plan.groups],
        "admission_blocks": list(planned.admission_blocks),
        "layouts": {layout.layer: to_dict(layout) for layout in planned.plan.layers},
        "backends": {
            name: backend
            for name, backend in planned.backends.items()
            if not is_unnamed(name, kinds[name])
        },
        "pools": [to_dict(pool) for pool in planned.plan.pools],
        "num_blocks": blocks,
        "counted_bytes": blocks * planned.plan.bytes_per_block,
        "allocated": [
            [bound.buffer_bytes(index, buffer) for buffer in range(len(pool.buffers))]
            for index, pool in enumerate(planned.plan.pools)
        ],
    }


def printed(pair, capsys):
    """What ``mkv-ascend explain`` prints, by numbers alone."""
    arguments = pair.arguments()
    command = ["explain", "--no-build", "--no-vllm-grouping", "--format", "json"]
    command += ["--model", arguments["model"], "--memory", str(MEMORY)]
    command += ["--max-model-len", str(TOKENS), "--max-num-batched-tokens"]
    command.append(str(arguments["max_num_batched_tokens"]))
    command += ["--runner", "v2" if pair.on_v2 else "v1"]
    command += ["--additional-config", json.dumps(arguments["additional_config"])]
    if arguments["speculative_config"] is not None:
        command += ["--speculative-config", json.dumps(arguments["speculative_config"])]
    capsys.readouterr()
    assert cli.main(command) == 0
    return json.loads(capsys.readouterr().out)


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
def test_what_is_explained_is_what_an_engine_allocates(name, capsys):
    pair = PAIRS[name]
    asked = Asked(pair.arguments())
    request = {"engine": pair.arguments(), "build": False}
    engine = programs.answer_of(PROBE, request, pair.variables)
    question = {"engine": pair.arguments(), "build": True}
    answer = programs.answer_of(PROBE, question, RUNNER_V2 if pair.on_v2 else {})
    built = from_vllm.read_answer(asked, answer)
    assert served(plan(built.inputs)) == engine
    assert served(plan(by_numbers(asked).inputs)) == engine
    plain = printed(pair, capsys)
    assert plain["num_blocks"] == engine["num_blocks"]
    assert plain["num_blocks"] * plain["bytes_per_block"] == engine["counted_bytes"]
    groups = [[layer["name"] for layer in group["layers"]] for group in plain["groups"]]
    assert groups == engine["groups"]
    found = {layer["name"]: layer for group in plain["groups"] for layer in group["layers"]}
    for layer, layout in engine["layouts"].items():
        assert found[layer]["page_bytes"] == layout["page_bytes"]
        if not is_unnamed(layer):
            assert found[layer]["backend"] == engine["backends"][layer]
    admission = [group["admission_blocks"] for group in plain["groups"]]
    assert admission == engine["admission_blocks"]


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
    engine = programs.answer_of(PROBE, {"engine": arguments, "build": False})
    assert served(plan(by_numbers(Asked(arguments)).inputs)) == engine


BUILT_ONLY = {
    "qwen3.5": Pair("qwen3_5", draft="gemma3_draft"),
    "qwen3.5, mtp": Pair("qwen3_5", "mtp", None),
}
OF_ANOTHER = V4
if not hosts.PLANS_DEEPSEEK_V4:
    # Beside another model's layers it is planned there, too; its worker takes a process of its own.
    OF_ANOTHER = {**V4, "distributed_executor_backend": "mp"}
    BUILT_ONLY["deepseek-v4"] = Pair("deepseek_v4_fitted", engine=OF_ANOTHER)
    BUILT_ONLY["deepseek-v4, windows"] = Pair(
        "deepseek_v4_fitted", draft="gemma3_draft", engine=OF_ANOTHER
    )


@pytest.mark.host("0.23", cases=["qwen3.5", "qwen3.5, mtp"])
@pytest.mark.nightly("other cases of it stay", cases=["deepseek-*"])
@pytest.mark.parametrize("name", BUILT_ONLY)
def test_what_numbers_tell_is_what_vllm_builds(name):
    """Without an engine; tests/emulated/recurrent runs this family in engines of its own."""
    asked = Asked(BUILT_ONLY[name].arguments())
    answer = programs.answer_of(PROBE, {"engine": dict(asked.engine), "build": True})
    found = served(plan(by_numbers(asked).inputs))
    assert found == served(plan(from_vllm.read_answer(asked, answer).inputs))


@pytest.mark.host("0.23", cases=["glm4_moe", "mimo_v2"])
@pytest.mark.nightly("other cases of it stay", cases=["ernie4_5_moe", "hy_v3"])
@pytest.mark.parametrize("name", CLASSES)
def test_a_predictor_of_numbers_alone_is_what_vllm_builds(name, tmp_path):
    write_config(name, tmp_path)
    speculative = {"method": "mtp", "num_speculative_tokens": 3}
    # Configurations of some families are code.
    arguments = Pair("llama_target", None, None, engine={"trust_remote_code": True}).arguments()
    assert_as_built({**arguments, "model": str(tmp_path), "speculative_config": speculative})


RATIOS = ([128, 128, 4, 128, 4, 128, 4, 0], [4, 128, 4, 128, 4], [4, 4, 4, 128, 0], [4, 4], [0, 0])
"""Of DeepSeek-V4's layers: as published, then with windows that are split, and one kind alone."""


@pytest.mark.host("0.23")
@hosts.only_on("vllm_ascend_0_23", "only there caches of DeepSeek-V4 alone are planned")
@pytest.mark.parametrize("ratios", RATIOS, ids=str)
@pytest.mark.parametrize("method", [None, "mtp"])
def test_deepseek_v4_of_other_depths_is_planned_as_vllm_builds_it(ratios, method, tmp_path):
    arguments = Pair("deepseek_v4_fitted", method, None, engine=V4).arguments()
    model = copy_with(arguments["model"], tmp_path, num_hidden_layers=len(ratios))
    model = copy_with(model, tmp_path, compress_ratios=[*ratios, 0])
    assert_as_built({**arguments, "model": str(model)})


@pytest.mark.host("0.23")
@pytest.mark.parametrize("layers", [5, 7, 12])
def test_kinds_of_layers_are_split_as_vllm_splits_them(layers, tmp_path):
    """A kind with less than half as many layers again as the rarest is not split, but padded."""
    arguments = Pair("gemma3", None, None).arguments()
    types = ["full_attention" if layer % 3 == 2 else "sliding_attention" for layer in range(layers)]
    types[: layers // 4] = ["full_attention"] * (layers // 4)
    given = {"num_hidden_layers": layers, "layer_types": types}
    assert_as_built({**arguments, "model": str(copy_with(arguments["model"], tmp_path, **given))})


def test_weights_and_ranks_that_are_not_there_are_built(tmp_path):
    """Two ranks, rotary tables of DeepSeek's kind, a draft of more bytes than the device has."""
    arguments = Pair("deepseek_v2_target", draft="gpt_oss_draft", engine=SHORT_STEPS).arguments()
    draft = arguments["speculative_config"]
    for folder in ("target", "draft"):
        (tmp_path / folder).mkdir()
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale_all_dim": 1.0}
    yarn["original_max_position_embeddings"] = 256
    target = copy_with(arguments["model"], tmp_path / "target", rope_parameters=yarn)
    draft["model"] = str(copy_with(draft["model"], tmp_path / "draft", intermediate_size=2**26))
    assert_as_built({**arguments, "model": str(target), "tensor_parallel_size": 2})


def test_rotary_tables_larger_than_the_device_are_built(tmp_path):
    """DeepSeek-V4's have a row for each position of the longest context."""
    arguments = Pair("deepseek_v4_fitted", draft="gemma3_draft", engine=OF_ANOTHER).arguments()
    model = copy_with(arguments["model"], tmp_path, max_position_embeddings=2**25)
    assert_as_built({**arguments, "model": str(model)})


def copy_with(model, folder, **values):
    """A folder with the config.json of ``model``, changed so."""
    config = json.loads((Path(model) / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **values}))
    return folder


def assert_as_built(arguments):
    asked = Asked(arguments)
    answer = programs.answer_of(PROBE, {"engine": arguments, "build": True})
    built = from_vllm.read_answer(asked, answer)
    assert served(plan(by_numbers(asked).inputs)) == served(plan(built.inputs))


@pytest.mark.host("0.23")
def test_a_config_may_name_the_dtype_of_the_targets_states(tmp_path):
    """Published configs of Qwen3.5 keep recurrent states in float32; a draft's follow."""
    arguments = Pair("qwen3_5", draft="qwen3_next_draft").arguments()
    shutil.copytree(arguments["model"], tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text())
    config["text_config"]["mamba_ssm_dtype"] = "float32"
    (tmp_path / "config.json").write_text(json.dumps(config))
    asked = Asked({**arguments, "model": str(tmp_path)})
    answer = programs.answer_of(PROBE, {"engine": dict(asked.engine), "build": True})
    found = served(plan(by_numbers(asked).inputs))
    assert found == served(plan(from_vllm.read_answer(asked, answer).inputs))
    dtypes = [x["dtype"] for layout in found["layouts"].values() for x in layout["components"]]
    assert dtypes.count("float32") == 2


@pytest.mark.host("0.23")
def test_every_class_of_multimodal_models_is_tried():
    assert set(image_models.CONFIGS) == set(DECODERS)


@pytest.mark.host(
    "0.23", cases=["AyaVisionForConditionalGeneration", "Gemma3ForConditionalGeneration"]
)
@pytest.mark.nightly(
    "named inside as Gemma 3, which stays; for a host's new release", cases=["[!AG]*", "Gemma4*"]
)
@pytest.mark.parametrize("architecture", image_models.CONFIGS)
def test_a_language_model_inside_is_planned_as_vllm_builds_it(architecture, tmp_path):
    """Its layers have the names that the class of the whole model gives them."""
    model = image_models.write_config(architecture, tmp_path)
    asked = Asked({**Pair("llama_target").arguments(), "model": str(model)})
    answer = programs.answer_of(PROBE, {"engine": dict(asked.engine), "build": True})
    found = by_numbers(asked)
    assert served(plan(found.inputs)) == served(plan(from_vllm.read_answer(asked, answer).inputs))


@pytest.mark.host("0.23")
@pytest.mark.parametrize("role", ["target", "draft"])
def test_a_language_model_inside_is_planned_as_an_engine_allocates_it(role, tmp_path):
    arguments = Pair("llama_target", engine=WITHOUT_IMAGES).arguments()
    of_role = arguments if role == "target" else arguments["speculative_config"]
    of_role["model"] = str(image_models.write_config("Gemma3ForConditionalGeneration", tmp_path))
    engine = programs.answer_of(PROBE, {"engine": arguments, "build": False})
    assert served(plan(by_numbers(Asked(arguments)).inputs)) == engine
