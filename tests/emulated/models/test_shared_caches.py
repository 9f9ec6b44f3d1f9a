# SPDX-License-Identifier: Apache-2.0
"""Layers without a cache of their own: those that read another layer's, and encoders."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
from vllm.v1.kv_cache_interface import (
    EncoderOnlyAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    UniformTypeKVCacheSpecs,
)
from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl

from tests.support import engine, hosts
from tests.support.caches.layer_cases import GQA, dense
from tests.support.caches.planned_runner import PlannedRunner
from tests.support.models import shared_model
from tests.support.pairs import TIES, assert_drafts_are_the_drafts_own, scenario, text_prompts
from tests.support.stock import each_runner

mended = hosts.only_on("vllm_ascend_0_23", "vllm-ascend 0.30.0rc2 leaves the owner's cache alone")
MkvModelRunner = hosts.module("runner").MkvModelRunner

NUM_BLOCKS = 5
DRAFT = "llama_draft"


@pytest.fixture(scope="module")
def gemma3n(tmp_path_factory):
    return shared_model.make(tmp_path_factory.mktemp("models") / "gemma3n", DRAFT)


@pytest.mark.core
@each_runner
def test_target_whose_layers_share_caches_with_a_draft_in_its_group(gemma3n, runner):
    """Tokens of Hugging Face; vllm-ascend's layers write over the keys of their owners.

    Those of 0.30.0rc2 leave them, and end at the first prompt, where they attend to keys that they
    have not.
    """
    prompts = text_prompts(gemma3n, 4)
    together = {"layout": {"shared_pages": False}}
    case = scenario(
        DRAFT, DRAFT, prompts=prompts, max_tokens=12, environment=runner, mkv_ascend=together
    )
    result = engine.run(replace(case, model=str(gemma3n)))
    near_tie, _ = TIES[engine.compared_dtype()]
    assert not shared_model.wrong_tokens(gemma3n, case.prompts, result.tokens, near_tie)
    assert_drafts_are_the_drafts_own(case, result)
    group = {row["name"]: row["kv_group"] for row in result.layers}
    for layer, owner in shared_model.OWNERS.items():
        names = [f"model.layers.{index}.self_attn.attn" for index in (layer, owner)]
        assert group[names[0]] == group[names[1]]
    # The draft's layers are in the group of the target's full layers, whose pages are others.
    assert {group[name] for name in group if name.startswith("draft_model.")} == {
        group["model.layers.1.self_attn.attn"]
    }


@pytest.mark.host("0.23", cases=["v1"])
@each_runner
def test_a_draft_whose_layers_share_caches(gemma3n, runner):
    """Each draft token is Hugging Face's, which shares keys through its cache alone."""
    prompts = text_prompts(gemma3n, 4)
    case = scenario("llama_target", DRAFT, prompts=prompts, max_tokens=12, environment=runner)
    result = engine.run(replace(case, draft=str(gemma3n)))
    contexts, drafted = zip(*((one.context, one.tokens) for one in result.proposals), strict=True)
    near_tie, _ = TIES[engine.compared_dtype()]
    assert len(contexts) > 20
    assert not shared_model.wrong_tokens(gemma3n, contexts, drafted, near_tie)


CACHE = torch.arange(4 * 128 * 2 * 64, dtype=torch.float32).view(4, 128, 2, 64)


@pytest.mark.host("0.23")
@mended
def test_a_layer_without_keys_writes_nothing():
    caches = (CACHE.to("npu:0"), (CACHE + 0.5).to("npu:0"))
    slots = torch.tensor([130, 131, 0, -1], dtype=torch.int32, device="npu:0")
    metadata = SimpleNamespace(slot_mapping=slots, num_actual_tokens=3)
    layer = SimpleNamespace(
        kv_sharing_target_layer_name=OWNER,
        impl=SimpleNamespace(reshape_and_cache=AscendAttentionBackendImpl.reshape_and_cache),
    )
    hosts.module("patches.attention").leave_the_cache_to_its_owner(layer)
    own = torch.zeros(4, 2, 64, device="npu:0")
    given = layer.impl.reshape_and_cache(own, own, own, caches, metadata, own)
    assert all(tensor is own for tensor in given)
    assert torch.equal(caches[0].cpu(), CACHE)
    assert torch.equal(caches[1].cpu(), CACHE + 0.5)


@pytest.mark.host("0.23")
@mended
def test_stock_writes_over_the_keys_of_the_owner():
    """Why the method is replaced."""
    implementation = SimpleNamespace(
        kv_sharing_target_layer_name="model.layers.0", key_cache=None, attn_type="decoder"
    )
    caches = (CACHE.to("npu:0").half(), CACHE.to("npu:0").half())
    slots = torch.tensor([130], dtype=torch.int32, device="npu:0")
    metadata = SimpleNamespace(slot_mapping=slots, num_actual_tokens=1)
    own = torch.full((1, 2, 64), 7.0, dtype=torch.float16, device="npu:0")
    AscendAttentionBackendImpl.reshape_and_cache(
        implementation, own, own, own, caches, metadata, own
    )
    if not caches[0][1, 2].eq(7).all():
        pytest.fail("vllm-ascend leaves the owner's cache alone now: patches/attention.py need not")


OWNER, OTHER, READER = "layers.0", "layers.1", "layers.2"
DECODER, ENCODER_LAYER = "layers.0", "layers.1"


def uniform_config(specs):
    group = KVCacheGroupSpec(list(specs), UniformTypeKVCacheSpecs(128, specs))
    tensors = [
        hosts.kv_cache_tensor(spec.page_size_bytes * NUM_BLOCKS, [name])
        for name, spec in specs.items()
    ]
    return KVCacheConfig(NUM_BLOCKS, tensors, [group])


def runner_with_sharing():
    """Two layers of unlike pages in one group, and a layer that reads the first one's cache."""
    config = uniform_config({OWNER: dense(), OTHER: dense(64, 2)})
    stand_in = PlannedRunner(config, dict.fromkeys([OWNER, OTHER], GQA))
    runner = MkvModelRunner.__new__(MkvModelRunner)
    vars(runner).update(vars(stand_in), device=stand_in.device, enable_hamming_sparse=False)
    runner.shared_kv_cache_layers = {READER: OWNER}
    runner.runner_only_attn_layers = set()
    runner.cache_config = SimpleNamespace(kv_sharing_fast_prefill=False)
    return runner


def test_a_layer_that_shares_joins_a_group_of_unlike_pages():
    runner = runner_with_sharing()
    runner.maybe_add_kv_sharing_layers_to_kv_cache_groups(runner.config)
    (group,) = runner.config.kv_cache_groups
    assert group.layer_names == [OWNER, OTHER, READER]
    assert group.kv_cache_spec.kv_cache_specs[READER] == dense()
    runner.layers[READER] = type(runner.layers[OWNER])()
    runner.initialize_kv_cache_tensors(runner.config)
    caches = {name: layer.kv_cache for name, layer in runner.layers.items()}
    for own, read in zip(caches[OWNER], caches[READER], strict=True):
        assert own is read
    planned = runner.cache_plan
    assert planned.total_bytes == NUM_BLOCKS * sum(
        spec.page_size_bytes for spec in (dense(), dense(64, 2))
    )
    assert dict(planned.aliases) == {READER: OWNER}


ENCODER = EncoderOnlyAttentionSpec(
    block_size=128, num_kv_heads=2, head_size=64, dtype=torch.bfloat16
)


def config_with_encoder(first):
    decoder = KVCacheGroupSpec([DECODER], dense(block=256))
    encoder = KVCacheGroupSpec([ENCODER_LAYER], ENCODER)
    groups = [encoder, decoder] if first else [decoder, encoder]
    size = dense(block=256).page_size_bytes * NUM_BLOCKS
    return KVCacheConfig(NUM_BLOCKS, [hosts.kv_cache_tensor(size, [DECODER])], groups)


@pytest.mark.core
@pytest.mark.host("0.23")
@pytest.mark.parametrize("first", [True, False])
def test_encoders_have_no_cache(first):
    runner = PlannedRunner(config_with_encoder(first), {DECODER: GQA, ENCODER_LAYER: GQA})
    runner.runner_only_attn_layers = {ENCODER_LAYER}
    runner.kernel_block_sizes = hosts.kernel_block_sizes(
        [128]
    )  # vllm-ascend leaves groups of encoders out
    runner.layers.pop(ENCODER_LAYER)
    assert runner.caches()[DECODER][0].shape == (2 * NUM_BLOCKS, 128, 4, 128)


@pytest.mark.host("0.23")
def test_a_model_of_encoders_alone_has_no_caches():
    runner = PlannedRunner(
        KVCacheConfig(1, [], [KVCacheGroupSpec([ENCODER_LAYER], ENCODER)]), {ENCODER_LAYER: GQA}
    )
    runner.runner_only_attn_layers = {ENCODER_LAYER}
    runner.kernel_block_sizes = []
    runner.layers.pop(ENCODER_LAYER)
    assert runner.caches() == {}
    assert runner.cache_plan.total_bytes == 0
