# SPDX-License-Identifier: Apache-2.0
"""How a draft is loaded on the last pipeline stage of model runner V2, without an engine."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")

import vllm_ascend.ops  # noqa: E402, F401  before the rest of it: its modules import in a circle
from vllm.config import LoadConfig  # noqa: E402
from vllm.model_executor.models.utils import PPMissingLayer  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.dflash import utils as dflash_utils  # noqa: E402
from vllm.v1.worker.gpu.spec_decode.eagle import utils as eagle_utils  # noqa: E402

from mkv_ascend.adapters.common import pipeline  # noqa: E402
from mkv_ascend.adapters.vllm_ascend_0_30.v2.drafting.loading import make_draft_config  # noqa: E402
from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches.stages import (  # noqa: E402
    embeddings_left_out,
)

pytestmark = pytest.mark.core


@pytest.fixture
def two_stages(monkeypatch):
    """The last of two pipeline stages."""
    group = SimpleNamespace(world_size=2, is_first_rank=False, is_last_rank=True)
    monkeypatch.setattr(pipeline.parallel_state, "_PP", group)


def head(**flags):
    """A head whose embeddings nobody wrote yet."""
    made = SimpleNamespace(**flags)
    made.model = nn.Module()
    made.model.embed_tokens = nn.Embedding(4, 2)
    return made


@pytest.mark.parametrize("loader", [eagle_utils, dflash_utils], ids=["eagle", "dflash"])
@pytest.mark.parametrize("flags", [{"has_own_embed_tokens": False}, {}], ids=["head", "mtp"])
def test_a_head_keeps_embeddings_where_the_targets_are_on_another_stage(two_stages, loader, flags):
    draft, target = head(**flags), nn.Module()
    target.embed_tokens = PPMissingLayer()
    own = draft.model.embed_tokens
    with embeddings_left_out(), pipeline.whole():
        loader.maybe_share_target_embed(draft, draft.model, target)
    assert draft.model.embed_tokens is own


@pytest.mark.parametrize("loader", [eagle_utils, dflash_utils], ids=["eagle", "dflash"])
@pytest.mark.parametrize("name", ["embed_tokens", "embedding"])
def test_a_head_shares_embeddings_that_the_last_stage_has_too(two_stages, loader, name):
    draft, target = head(has_own_embed_tokens=False), nn.Module()
    setattr(target, name, nn.Embedding(4, 2))
    with embeddings_left_out(), pipeline.whole():
        loader.maybe_share_target_embed(draft, draft.model, target)
    assert draft.model.embed_tokens is getattr(target, name)


@dataclass
class Attention:
    backend: Any = None


@dataclass
class Cache:
    cache_dtype: str = "auto"


@dataclass
class Parallel:
    rank: int = 1
    of: str = "target"


@dataclass
class Config:
    """What of vLLM's configuration a draft's is made from."""

    load_config: LoadConfig
    cache_config: Cache = field(default_factory=Cache)
    parallel_config: Parallel = field(default_factory=Parallel)
    quant_config: Any = "the target's"
    attention_config: Attention = field(default_factory=Attention)
    model_config: Any = field(default_factory=lambda: SimpleNamespace(runner_type="generate"))
    speculative_config: Any = field(
        default_factory=lambda: SimpleNamespace(
            method="eagle",
            attention_backend=None,
            kv_cache_dtype=None,
            draft_load_config=None,
            draft_model_config=SimpleNamespace(runner_type="draft"),
            use_step3p5_mtp=lambda: False,
        )
    )


@pytest.mark.parametrize(("asked", "used"), [("fastsafetensors", "auto"), ("auto", "auto")])
def test_weights_are_not_loaded_with_ranks_that_have_no_draft(two_stages, asked, used):
    config = make_draft_config(Config(LoadConfig(load_format=asked)))
    assert config.load_config.load_format == used


@pytest.mark.parametrize(("asked", "used"), [("fastsafetensors", "auto"), ("dummy", "dummy")])
def test_a_draft_is_loaded_by_its_own_options(two_stages, asked, used):
    """A target in shards for its ranks beside a draft as it was published."""
    given = Config(LoadConfig(load_format="sharded_state"))
    given.speculative_config.draft_load_config = LoadConfig(load_format=asked)
    assert make_draft_config(given).load_config.load_format == used
    assert given.load_config.load_format == "sharded_state"


@pytest.mark.parametrize(("asked", "used"), [(None, "auto"), ("int8", "int8")])
def test_a_draft_has_a_cache_of_its_own_dtype(two_stages, asked, used):
    given = Config(LoadConfig())
    given.speculative_config.kv_cache_dtype = asked
    assert make_draft_config(given).cache_config.cache_dtype == used
    assert given.cache_config.cache_dtype == "auto"


def test_a_draft_model_is_built_on_its_own_rank_from_its_own_configuration(two_stages):
    given = Config(LoadConfig())
    speculative = given.speculative_config
    speculative.method, speculative.draft_parallel_config = "draft_model", Parallel(0, "draft")
    made = make_draft_config(given)
    assert made.parallel_config == Parallel(1, "draft")
    assert made.model_config is speculative.draft_model_config
    assert made.quant_config is None
    speculative.method = "eagle"
    head = make_draft_config(given)
    # Layers of MLA know by it that they draft.
    assert head.model_config.runner_type == "draft"
    assert given.model_config.runner_type == "generate"
    assert head.quant_config == "the target's"
