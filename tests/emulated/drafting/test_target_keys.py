# SPDX-License-Identifier: Apache-2.0
"""Which layer of the target each layer of a head without keys reads (Gemma 4)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig
from vllm.model_executor.layers.attention import Attention
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.attention.records import WINDOW
from mkv_ascend.adapters.common.drafting.strategies import TargetKeys
from tests.support import hosts
from tests.support.draft_facts import loaded

pytestmark = pytest.mark.core


class Layer(Attention):
    """One with this spec, and no operators."""

    def __init__(self, spec: Any, owner: str | None = None, impl: object = ()) -> None:
        nn.Module.__init__(self)
        self.spec, self.kv_sharing_target_layer_name, self.impl = spec, owner, impl

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        return self.spec


def full(size: int = 128, block_size: int = 128) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=size, dtype=torch.float32
    )


def window(tokens: int = 32) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=128, num_kv_heads=2, head_size=64, dtype=torch.float32, sliding_window=tokens
    )


def wired(target: dict[str, Layer], draft: dict[str, Layer]) -> dict[str, str | None]:
    """The layer that each of the draft's reads; the host is told of all of them."""
    told: list[Any] = []
    config = SimpleNamespace(
        compilation_config=SimpleNamespace(static_forward_context={**target, **draft})
    )
    host = SimpleNamespace(run_without_keys=lambda _, layers: told.extend(layers))
    TargetKeys.layers_made(replace(loaded(vllm_config=config), layers=draft), host)
    assert told == list(draft.values())
    return {name: layer.kv_sharing_target_layer_name for name, layer in draft.items()}


def test_the_last_layer_that_keeps_such_keys() -> None:
    """Not one that reads another's cache itself; blocks may be of another size."""
    target = {
        "layers.0": Layer(window()),
        "layers.1": Layer(full()),
        "layers.2": Layer(window()),
        "layers.3": Layer(full()),
        "layers.4": Layer(full(), owner="layers.3"),
    }
    draft = {"draft.0": Layer(window()), "draft.1": Layer(full(block_size=64))}
    assert wired(target, draft) == {"draft.0": "layers.2", "draft.1": "layers.3"}


@pytest.mark.parametrize("other", [full(64), window(64)])
def test_a_head_of_another_target_is_refused(other: Any) -> None:
    target = {"layers.0": Layer(window()), "layers.1": Layer(full())}
    with pytest.raises(ValueError, match=r"layer draft\.0 .* Choose the head that belongs to"):
        wired(target, {"draft.0": Layer(other)})


def test_another_backend_is_refused() -> None:
    """It may arrange its cache otherwise."""
    with pytest.raises(ValueError, match=r"on list, and reads the cache of layers\.0, .* on tuple"):
        wired({"layers.0": Layer(full())}, {"draft.0": Layer(full(), impl=[])})


def test_windows_of_drafts_read_the_same_cache() -> None:
    """On 0.30.0rc2 layers of drafts with windows, and no others, have operators that see ahead."""

    class Implementation:
        def forward_fused_infer_attention(self) -> None: ...

    members = {"forward_fused_infer_attention": lambda self: None}
    of_drafts = derive(Implementation, "[window]", members, WINDOW)
    target = {"layers.0": Layer(window(), impl=Implementation())}
    assert wired(target, {"draft.0": Layer(window(), impl=of_drafts())}) == {"draft.0": "layers.0"}


ON_0_23 = hosts.only_on("vllm_ascend_0_23", "0.30.0rc2 rotates queries alone and has the head")


@ON_0_23
def test_queries_are_rotated_without_keys() -> None:
    """vllm-ascend 0.23.0 takes keys in any case; where there are some, nothing changes."""
    import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle

    from mkv_ascend.adapters.vllm_ascend_0_23.patches.attention import rotate_queries_alone

    class Rotary(nn.Module):
        head_size = 4

        def forward(self, positions: Any, query: Any, key: Any) -> Any:
            assert key.shape[1] % self.head_size == 0
            return query + positions[:, None], key - positions[:, None]

    model, query = nn.Module(), torch.ones(3, 8)
    model.layer = nn.Module()
    model.layer.rotary_emb = Rotary()
    rotate_queries_alone(model)
    rotated, keys = model.layer.rotary_emb(torch.arange(3), query, None)
    assert rotated.tolist() == (query + torch.arange(3)[:, None]).tolist()
    assert keys is None
    _, keys = model.layer.rotary_emb(torch.arange(3), query, query)
    assert keys.tolist() == (query - torch.arange(3)[:, None]).tolist()


@ON_0_23
def test_the_configuration_of_the_head_is_read(tmp_path: Path) -> None:
    """With the words of transformers that has such a class; vLLM's override makes the rest."""
    from mkv_ascend.adapters.vllm_ascend_0_23.patches import start_up

    start_up.register()
    text = {"model_type": "gemma4_text", "hidden_size": 64, "num_kv_shared_layers": 2}
    content = {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": "gemma4_assistant",
        "backbone_hidden_size": 128,
        "text_config": text,
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.get_text_config().hidden_size == 64
    assert config.get_text_config().num_kv_shared_layers == 2
    assert config.architectures == content["architectures"]
    assert (config.model_type, config.backbone_hidden_size) == ("gemma4_assistant", 128)
