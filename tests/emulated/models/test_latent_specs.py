# SPDX-License-Identifier: Apache-2.0
"""Specs of MLA layers by MkvModelRunner's own method, beside those of vllm-ascend's.

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
from vllm_ascend.attention.mla_v1 import AscendMLABackend
from vllm_ascend.attention.sfa_v1 import AscendSFABackend
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from tests.support import hosts

pytestmark = pytest.mark.core

hosts.skip_module_unless(
    "vllm_ascend_0_23", "0.30.0rc2 has a spec for each indexer: test_mla_specs"
)

tied_facts = hosts.module("kv_cache.layer_facts").tied_facts
MkvModelRunner = hosts.module("runner").MkvModelRunner

BF16 = torch.bfloat16


def layer(latent: int = 512, rope: int = 64, indexer: int | None = None, **impl: Any) -> Any:
    """An MLA layer; sparse with ``indexer``, which is 0 where it reads another layer's.

    Such a layer has the size of an indexer's keys from its configuration all the same, as
    ``AscendSFAImpl`` reads it.
    """
    made = MLAAttention.__new__(MLAAttention)
    torch.nn.Module.__init__(made)
    made.kv_lora_rank, made.qk_rope_head_dim, made.head_size = latent, rope, latent + rope
    made.kv_cache_dtype, made.use_sparse = "auto", indexer is not None
    made.attn_backend = AscendSFABackend if made.use_sparse else AscendMLABackend
    made.impl = SimpleNamespace(**{"fa_quant_layer": False, **impl})
    if indexer is not None:
        packed = {"enable_sparse_sfa_c8": False, "enable_sparse_li_c8": False, **impl}
        made.impl = SimpleNamespace(has_indexer=indexer > 0, head_dim=indexer or 128, **packed)
    return made


def runner(target: Any, draft: Any, sparse_target: bool) -> MkvModelRunner:
    made = object.__new__(MkvModelRunner)
    text = SimpleNamespace(kv_lora_rank=512, qk_rope_head_dim=64, index_head_dim=128)
    made.model_config = SimpleNamespace(hf_text_config=text, dtype=BF16)
    made.vllm_config = SimpleNamespace(
        compilation_config=SimpleNamespace(
            static_forward_context={"model.0.attn": target, "draft.0.attn": draft}
        ),
        cache_config=SimpleNamespace(block_size=128, cache_dtype="auto"),
        model_config=made.model_config,
    )
    made.use_compress, made.use_sparse = False, sparse_target
    made.sparse_head_dim, made.sfa_dcp_replicated_indexer_size = (512, 64, 128), 1
    made.block_size, made.kv_cache_dtype = 128, BF16
    made.shared_kv_cache_layers = {}
    made.drafter = SimpleNamespace(_draft_attn_layer_names={"draft.0.attn"})
    return made


def spec(head_size: int, sizes: tuple[int, int, int] | None = None, **fields: Any) -> Any:
    return AscendMLAAttentionSpec(
        block_size=128,
        num_kv_heads=1,
        head_size=head_size,
        sparse_head_dim=sizes,
        dtype=BF16,
        cache_dtype_str="auto",
        **fields,
    )


CASES = {
    "sparse target, dense draft": (layer(indexer=128), layer(256, 32), spec(288)),
    "sparse target, sparse draft of other sizes": (
        layer(indexer=128),
        layer(256, 32, 64),
        spec(352, (256, 32, 64)),
    ),
    "dense target, sparse draft": (layer(), layer(indexer=128), spec(704, (512, 64, 128))),
    "dense target, draft without an indexer": (
        layer(),
        layer(indexer=0),
        spec(576, (512, 64, 0)),
    ),
    "dense target, quantised draft": (
        layer(),
        layer(indexer=128, enable_sparse_sfa_c8=True, enable_sparse_li_c8=True),
        spec(784, (656, 0, 128), cache_sparse_sfa_c8=True, cache_sparse_li_c8=True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_specs_of_a_draft_are_its_own(case: str) -> None:
    target, draft, expected = CASES[case]
    made = runner(target, draft, target.use_sparse)
    specs, stock = made.get_kv_cache_spec(), NPUModelRunner.get_kv_cache_spec(made)
    assert specs["draft.0.attn"] == expected
    assert specs["model.0.attn"] == stock["model.0.attn"]
    facts = tied_facts(specs["draft.0.attn"])
    assert facts is not None
    assert (facts.latent_dim, facts.rope_dim) == (draft.kv_lora_rank, draft.qk_rope_head_dim)
    if stock["draft.0.attn"] == expected:
        pytest.fail("vllm-ascend asks the layer now: drop the override")


def quantised() -> Any:
    """A layer whose latents have 8 bits. Its rope has 16, so a row is as long as 2 * rope more."""
    return layer(
        fa_quant_layer=True,
        dtype=torch.int8,
        vllm_config=SimpleNamespace(model_config=SimpleNamespace(dtype=BF16)),
    )


@pytest.mark.parametrize(
    "make", [layer, lambda: layer(indexer=128), lambda: layer(indexer=0), quantised]
)
def test_specs_that_fit_their_layers_are_vllm_ascends(make: Any) -> None:
    made = runner(make(), make(), sparse_target=make().use_sparse)
    assert made.get_kv_cache_spec() == NPUModelRunner.get_kv_cache_spec(made)
