# SPDX-License-Identifier: Apache-2.0
"""Fields that only some specs have: the mode of quantisation, and tokens of a row."""

from types import SimpleNamespace

import pytest

from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.recipes import LayerFacts, layout_of, tokens_per_row
from tests.support.caches import specs


@pytest.mark.parametrize("asked", ["is_per_token_head", "is_nvfp4", None])
def test_formats_of_cuda_are_missing_by_the_name_of_their_mode(asked: str | None) -> None:
    """Modes as vLLM's ``KVQuantMode`` has them: one that is neither is planned as its dtype is."""
    mode = SimpleNamespace(name="THIS_ONE", is_per_token_head=False, is_nvfp4=False)
    spec, facts = specs.FullAttentionSpec(128, 8, 128), LayerFacts("layers.0", Role.TARGET)
    object.__setattr__(spec, "kv_quant_mode", mode)
    if asked is None:
        assert layout_of(spec, facts).page_bytes == spec.page_size_bytes
        return
    setattr(mode, asked, True)
    with pytest.raises(NotImplementedError, match=r"layers.0: KV quantisation THIS_ONE .* choose"):
        layout_of(spec, facts)


@pytest.mark.parametrize(
    ("fields", "tokens"), [({}, 1), ({"compress_ratio": 4}, 4), ({"tokens_per_state": 8}, 8)]
)
def test_a_row_stands_for_as_many_tokens_as_either_host_says(
    fields: dict[str, int], tokens: int
) -> None:
    assert tokens_per_row(SimpleNamespace(**fields)) == tokens
