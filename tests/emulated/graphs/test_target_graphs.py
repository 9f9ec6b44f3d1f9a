# SPDX-License-Identifier: Apache-2.0
"""What vllm-ascend is told of a verify step where the target's graphs are captured and updated."""

import functools
from types import SimpleNamespace

import pytest
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm_ascend.attention.attention_v1 import AscendAttentionState

from mkv_ascend.adapters.common.graphs import for_updates, have_readers, state_of

pytestmark = [pytest.mark.host("0.23"), pytest.mark.core]

DECODE, CHUNK = AscendAttentionState.DecodeOnly, AscendAttentionState.ChunkedPrefill
PREFILL = AscendAttentionState.PrefillCacheHit


@pytest.mark.parametrize(
    ("state", "longest", "verifies", "told"),
    [
        (DECODE, 1, True, DECODE),
        (DECODE, 2, True, CHUNK),  # a verify step of K = 1
        (DECODE, 5, False, CHUNK),
        (PREFILL, 5, True, CHUNK),  # verified drafts beside a prompt, without chunked prefill
        (PREFILL, 5, False, PREFILL),
        (AscendAttentionState.PrefillNoCache, 5, True, AscendAttentionState.PrefillNoCache),
    ],
)
def test_several_tokens_of_a_request_are_a_chunk(state, longest, verifies, told):
    assert state_of(state, longest, verifies) is told


@pytest.mark.parametrize(("owner", "told"), [(None, "PrefillNoCache"), ("b", "ChunkedPrefill")])
def test_a_layer_without_keys_reads_another_layers_cache_in_a_prefill(owner, told):
    """Of the layers that metadata is built for; a draft's may read caches as well."""
    layers = {"a": SimpleNamespace(kv_sharing_target_layer_name=owner), "b": SimpleNamespace()}
    layers["draft"] = SimpleNamespace(kv_sharing_target_layer_name="b")
    config = SimpleNamespace(compilation_config=SimpleNamespace(static_forward_context=layers))
    groups = [[SimpleNamespace(layer_names=["b"]), SimpleNamespace(layer_names=["a"])], []]
    reads = functools.partial(have_readers, config, groups)
    assert state_of(AscendAttentionState.PrefillNoCache, 5, True, reads).name == told
    assert state_of(DECODE, 1, True, reads) is DECODE


@pytest.mark.parametrize(("tokens", "told"), [(None, 4), (2, 2), (0, 0)])
def test_any_method_is_updated_with_as_many_tokens_as_its_graph_has(tokens, told):
    config = SimpleNamespace(
        method="draft_model", num_speculative_tokens=4, use_eagle=lambda: False
    )
    seen = for_updates(config, tokens)
    assert seen.use_eagle() is True
    assert seen.num_speculative_tokens == told
    assert seen.method == "draft_model"
    assert config.num_speculative_tokens == 4
    assert for_updates(None, tokens) is None
