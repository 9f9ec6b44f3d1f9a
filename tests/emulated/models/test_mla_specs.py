# SPDX-License-Identifier: Apache-2.0
"""Specs of MLA layers and of their indexers by MkvModelRunner's own method, beside vllm-ascend's.

The runner has what that method reads, and layers without weights.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.models.deepseek_v2 import DeepseekV32IndexerCache
from vllm_ascend.attention.mla_v1 import AscendMLABackend
from vllm_ascend.attention.sfa_v1 import AscendSFABackend
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from tests.support import hosts

pytestmark = pytest.mark.core

hosts.skip_module_unless(
    "vllm_ascend_0_30", "0.23.0 keeps an indexer's keys in its layer's spec: test_latent_specs"
)

tied_facts = hosts.module("kv_cache.layer_facts").tied_facts
MkvModelRunner = hosts.module("runner").MkvModelRunner

BF16 = torch.bfloat16
TARGET, DRAFT, INDEXER = "model.0.attn", "draft.0.attn", "draft.0.indexer.k_cache"
PACKED = 256 + 2 * 32 + 4 * 256 // 128
"""Bytes of a row of 8-bit latents: the latent, rope in 16 bits, a scale of 4 bytes for each 128."""


def layer(latent: int = 512, rope: int = 64, *, sparse: bool = False, packed: bool = False) -> Any:
    """An MLA layer; ``packed``: its latents have 8 bits."""
    made = MLAAttention.__new__(MLAAttention)
    torch.nn.Module.__init__(made)
    made.kv_lora_rank, made.qk_rope_head_dim, made.head_size = latent, rope, latent + rope
    made.kv_cache_dtype, made.sliding_window, made.indexer = "auto", None, None
    made.non_causal_multi_token_decode = False
    made.attn_backend = AscendSFABackend if sparse else AscendMLABackend
    made.impl = SimpleNamespace(enable_sparse_sfa_c8=packed)
    return made


def indexer() -> Any:
    made = DeepseekV32IndexerCache.__new__(DeepseekV32IndexerCache)
    torch.nn.Module.__init__(made)
    return made


def runner(target: Any, draft: Any, *, sparse_target: bool, sparse_draft: bool) -> MkvModelRunner:
    """With the configurations of both models; those of dense ones name no size of index keys."""
    made = object.__new__(MkvModelRunner)
    sizes: dict[str, int] = {"index_head_dim": 128}
    text = SimpleNamespace(
        kv_lora_rank=512, qk_rope_head_dim=64, **(sizes if sparse_target else {})
    )
    of_draft = SimpleNamespace(**(sizes if sparse_draft else {}))
    layers = {TARGET: target, DRAFT: draft, **({INDEXER: indexer()} if sparse_draft else {})}
    made.model_config = SimpleNamespace(hf_text_config=text, dtype=BF16)
    made.vllm_config = SimpleNamespace(
        additional_config={},
        cache_config=SimpleNamespace(block_size=128, cache_dtype="auto"),
        compilation_config=SimpleNamespace(static_forward_context=layers),
        kv_transfer_config=None,
        model_config=made.model_config,
        quant_config=None,
        speculative_config=SimpleNamespace(
            draft_model_config=SimpleNamespace(hf_text_config=of_draft)
        ),
    )
    made.ascend_config = SimpleNamespace(
        is_sparse_li_c8_layer=lambda _: False, is_sparse_li_c4_layer=lambda _: False
    )
    made.use_compress, made.use_sparse, made.sparse_kv_offload_enabled = False, sparse_target, False
    made.block_size, made.dtype, made.kv_cache_dtype, made.c8_cache_dtype = (
        128,
        BF16,
        BF16,
        torch.int8,
    )
    made.sfa_dcp_replicated_indexer_size, made.shared_kv_cache_layers = 1, {}
    made.drafter = SimpleNamespace(_draft_attn_layer_names={DRAFT, INDEXER})
    return made


WRONG = {
    "sparse target, dense draft": ({"sparse": True}, {"latent": 256, "rope": 32}, 288, 576),
    "sparse target, sparse draft of other sizes": (
        {"sparse": True},
        {"latent": 256, "rope": 32, "sparse": True},
        288,
        576,
    ),
    "dense target, draft of 8 bits": (
        {},
        {"latent": 256, "rope": 32, "sparse": True, "packed": True},
        PACKED,
        512 + 2 * 64 + 4 * 512 // 128,
    ),
}
"""Layers of target and draft, the size of the draft's rows, and what vllm-ascend takes for it."""


@pytest.mark.parametrize("case", WRONG)
def test_sizes_of_a_drafts_rows_are_its_own(case: str) -> None:
    target, draft, size, stock_size = WRONG[case]
    sparse = {"sparse_target": "sparse" in target, "sparse_draft": "sparse" in draft}
    made = runner(layer(**target), layer(**draft), **sparse)
    with pytest.MonkeyPatch.context() as patched:
        # vllm-ascend asks it of the target, which may have none.
        patched.setattr(made.model_config.hf_text_config, "index_head_dim", 128, raising=False)
        stock = NPUModelRunner.get_kv_cache_spec(made)
    assert stock[DRAFT].head_size == stock_size, "vllm-ascend asks the layer now: drop the override"
    specs = made.get_kv_cache_spec()
    assert specs[DRAFT].head_size == size
    assert specs[TARGET] == stock[TARGET]
    facts = tied_facts(specs[DRAFT])
    assert facts is not None
    assert (facts.latent_dim, facts.rope_dim) == (draft["latent"], draft["rope"])


def test_the_size_of_a_drafts_index_keys_is_asked_of_the_draft() -> None:
    made = runner(layer(), layer(sparse=True), sparse_target=False, sparse_draft=True)
    with pytest.raises(AttributeError, match="index_head_dim"):
        NPUModelRunner.get_kv_cache_spec(made)
    assert made.get_kv_cache_spec()[INDEXER].head_size == 128
    assert not hasattr(made.model_config.hf_text_config, "index_head_dim")


@pytest.mark.parametrize("sparse", [False, True])
def test_specs_that_fit_their_layers_are_vllm_ascends(sparse: bool) -> None:
    made = runner(
        layer(sparse=sparse), layer(sparse=sparse), sparse_target=sparse, sparse_draft=sparse
    )
    assert made.get_kv_cache_spec() == NPUModelRunner.get_kv_cache_spec(made)
