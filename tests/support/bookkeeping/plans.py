# SPDX-License-Identifier: Apache-2.0
"""Pairs of models as an engine core sees them, and vLLM's scheduler over our plan of their caches.

Blocks have few tokens here, so that a short sequence has many of them. Everything else is what an
engine core does: our patches, vLLM's configuration of caches, block sizes, scheduler.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import vllm_ascend.ops  # First of vllm_ascend, or its imports go in a circle.
import vllm_ascend.patch.platform  # noqa: F401  Before specs are registered, as in an engine.
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.engine import core
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec

from mkv_ascend.adapters.common.kv_cache.page_shapes import page_shapes_of, with_page_shapes
from mkv_ascend.adapters.patching import _owner, replaced
from mkv_ascend.layout.component import PageShape
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.recipes import LayerFacts
from tests.support import hosts
from tests.support.bookkeeping.cells import PageOf
from tests.support.caches import kv_configs

layer_facts = hosts.module("kv_cache.layer_facts")

BLOCK = 4
MAX_LENGTH = 46
"""No multiple of a block."""
MOST_REQUESTS = 4
MOST_TOKENS = 20
TARGET, DRAFT = "target", "draft"


def states(k: int) -> Any:
    return MambaSpec(
        block_size=MAX_LENGTH,
        shapes=((3, 8), (2, 4, 4)),
        dtypes=(torch.bfloat16, torch.float32),
        mamba_cache_mode="none",
        num_speculative_blocks=k,
    )


@dataclass(frozen=True)
class Pair:
    """Specs of the layers of a target and its draft; ``method`` as of the speculative options.

    ``shapes``: of the groups in turn, where blocks lie in pages that groups share.
    """

    target: tuple[Callable[[int], Any], ...]
    draft: tuple[Callable[[int], Any], ...]
    method: str = "draft_model"
    k: int = 3
    caching: bool = True
    shapes: tuple[PageShape, ...] = ()


def _of(make: Callable[..., Any], *arguments: Any) -> Callable[[int], Any]:
    return lambda k: make(*arguments, block=BLOCK)


FULL, WIDE, MLA = (
    _of(kv_configs.full, 2, 16),
    _of(kv_configs.full, 4, 16),
    _of(kv_configs.mla, 40),
)
SHORT, LONG = _of(kv_configs.window, 2, 16, 6), _of(kv_configs.window, 2, 16, 13)
WIDE_WINDOW = _of(kv_configs.window, 4, 16, 6)
PAIRS = {
    "one group": Pair((FULL, FULL), (FULL,)),
    "dense and windows": Pair((FULL, SHORT, SHORT), (WIDE, SHORT)),
    "mla, draft of windows": Pair((MLA, MLA), (WIDE_WINDOW, WIDE_WINDOW)),
    "states, dense draft": Pair((states, states, FULL), (WIDE,), caching=False),
    "draft in three groups": Pair((FULL, FULL), (WIDE, SHORT, LONG), k=4),
    "head": Pair((FULL, SHORT), (FULL,), method="eagle3"),
    "head of windows": Pair((FULL, FULL), (SHORT,), method="eagle3", k=2),
    "mask tokens": Pair((FULL, SHORT), (FULL,), method="dflash"),
    "pages of dense and windows": Pair(
        (FULL, SHORT, SHORT), (WIDE, SHORT), shapes=(PageShape(2, 2), PageShape(3, 1))
    ),
    "pages of three groups": Pair(
        (FULL, FULL),
        (WIDE, SHORT, LONG),
        k=4,
        shapes=(PageShape(3, 1), PageShape(1, 2), PageShape(), PageShape(1, 4)),
    ),
    "pages of states": Pair(
        (states, states, FULL),
        (WIDE,),
        caching=False,
        shapes=(PageShape(2, 1), PageShape(1, 3)),
    ),
    "pages of a head": Pair(
        (FULL, SHORT), (FULL,), method="eagle3", shapes=(PageShape(1, 4), PageShape(4, 1))
    ),
}


def specs_of(pair: Pair) -> dict[str, Any]:
    """The spec of each layer, tied to its facts as the worker ties them."""
    found = {}
    for role, models in ((Role.TARGET, pair.target), (Role.DRAFT, pair.draft)):
        for index, make in enumerate(models):
            spec = make(pair.k)
            name = f"{role.value}.layers.{index}"
            block = None if isinstance(spec, MambaSpec) else BLOCK
            is_mla = isinstance(spec, AscendMLAAttentionSpec)
            latent, rope = (32, 8) if is_mla else (None, None)
            facts = LayerFacts(name, role, kernel_block=block, latent_dim=latent, rope_dim=rope)
            layer_facts.tie(spec, facts)
            found[name] = spec
    return found


def config_of(pair: Pair, asynchronous: bool, blocks: int | None) -> Any:
    """What vLLM's functions and scheduler read of a VllmConfig."""
    # How blocks lie in pages, a pair says itself.
    layout = {"shared_pages": False}
    config = kv_configs.config(pair.method, MAX_LENGTH, layout=layout, blocks=blocks)
    # vLLM counts dflash among them, though its input is not shifted.
    on_states = pair.method in ("eagle3", "dflash")
    lookahead = pair.k + (pair.method == "dflash")
    for name, value in {
        "ec_manager_config": SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        "ec_transfer_config": None,
        "is_mm_encoder_only": False,
        "kv_events_config": None,
        "lora_config": None,
        "max_concurrent_batches": 1 + asynchronous,
        "max_in_flight_tokens": MOST_TOKENS * (1 + asynchronous),
        "num_lookahead_tokens": lookahead,
        "num_speculative_tokens": pair.k,
        "observability_config": SimpleNamespace(
            enable_logging_iteration_details=False,
            enable_mfu_metrics=False,
            kv_cache_metrics=False,
            per_request_spec_decode_metrics="none",
        ),
    }.items():
        setattr(config, name, value)
    _set_scheduling(config, asynchronous)
    vars(config.model_config).update(
        enable_prompt_embeds=False,
        enable_return_routed_experts=False,
        is_attention_free=False,
        is_diffusion=False,
        is_encoder_decoder=False,
        is_hybrid=states in pair.target,
        is_multimodal_model=False,
        multimodal_config=None,
        return_sampling_mask=False,
        served_model_name="model",
        uses_mrope=False,
    )
    vars(config.cache_config).update(
        block_size=BLOCK,
        enable_mamba_fine_grained_prefix_cache=False,
        enable_prefix_caching=pair.caching,
    )
    vars(config.speculative_config).update(
        draft_model_config=SimpleNamespace(
            hf_config=SimpleNamespace(n_predict=None), is_attention_free=False, is_hybrid=False
        ),
        max_num_new_slots_for_drafting=0,
        num_speculative_tokens=pair.k,
        num_speculative_tokens_per_batch_size=None,
        use_dflash=lambda: pair.method == "dflash",
        use_eagle=lambda: on_states,
        use_eagle_block_drop=lambda: on_states,
        uses_draft_model=lambda: pair.method == "draft_model",
    )
    return config


def _set_scheduling(config: Any, asynchronous: bool) -> None:
    vars(config.parallel_config).update(
        data_parallel_index=0, data_parallel_size=1, pipeline_parallel_size=1
    )
    vars(config.scheduler_config).update(
        async_scheduling=asynchronous,
        disable_chunked_mm_input=False,
        enable_chunked_prefill=True,
        long_prefill_token_threshold=0,
        max_num_batched_tokens=MOST_TOKENS,
        max_num_scheduled_tokens=None,
        max_num_seqs=MOST_REQUESTS,
        policy="fcfs",
        scheduler_reserve_full_isl=True,
        watermark=0.0,
    )


@contextlib.contextmanager
def patched(config: Any) -> Iterator[None]:
    """All of our patches of the engine core, taken back afterwards."""
    register_all_kvcache_specs(config)
    init_none_hash(sha256)
    patches = tuple(hosts.ADAPTER.patches_of_the_engine_core(config))
    with contextlib.ExitStack() as stack:
        stack.enter_context(_default_ascend_config())
        for patch in patches:
            for target in patch.functions:
                owner, name = _owner(target, patch.record.name)
                before = inspect.getattr_static(owner, name)
                stack.callback(setattr, owner, name, before)
        for patch in patches:
            patch.apply()
        yield


@contextlib.contextmanager
def _default_ascend_config() -> Iterator[None]:
    """Defaults of vllm-ascend 0.30.0rc2 for its scheduler, which reads a whole VllmConfig for them.

    With them, it is vLLM's scheduler.
    """
    name = "vllm_ascend.patch.platform.patch_balance_schedule"
    module = sys.modules.get(name)
    if module is None or not hasattr(module, "init_ascend_config"):
        yield
        return
    off = SimpleNamespace(short_request_first_config=SimpleNamespace(enabled=False))
    with replaced(module, "init_ascend_config", lambda _: SimpleNamespace(scheduler_config=off)):
        yield


@dataclass
class Core:
    """A scheduler over planned caches, and what is needed to make requests for it."""

    pair: Pair
    config: Any
    caches: Any
    scheduler: Any
    block_hasher: Callable[[Any], Any]

    @property
    def pool(self) -> Any:
        """vLLM's block pool."""
        return self.scheduler.kv_cache_manager.block_pool

    @property
    def page_of(self) -> PageOf:
        """Where blocks lie in pages."""
        return PageOf(self.caches.num_blocks, page_shapes_of(self.caches))

    def groups_of(self, role: Role) -> list[int]:
        """KV groups in which the model of this role has layers."""
        return [
            index
            for index, group in enumerate(self.caches.kv_cache_groups)
            if any(name.startswith(role.value) for name in group.layer_names)
        ]


def make_core(pair: Pair, asynchronous: bool, spare_blocks: int) -> Core:
    """As an engine core does it; run inside ``patched``.

    Args:
        spare_blocks: blocks beside those that one request of the largest length needs.
    """
    config = config_of(
        pair, asynchronous, _blocks_of_one_request(pair, asynchronous) + spare_blocks
    )
    caches = generate_scheduler_kv_cache_config(
        core.get_kv_cache_configs(config, [specs_of(pair)], [2**24])
    )
    if pair.shapes:
        caches = _share_pages(pair, caches, config.num_lookahead_tokens, asynchronous, spare_blocks)
    config.cache_config.num_gpu_blocks = caches.num_blocks
    _set_block_size(config.cache_config, caches.kv_cache_groups)
    block_size, hashed = core.resolve_kv_cache_block_sizes(caches, config)
    scheduler = scheduler_over(caches, config, block_size, hashed, asynchronous)
    return Core(pair, config, caches, scheduler, core.get_request_block_hasher(hashed, sha256))


def scheduler_over(
    caches: Any, config: Any, block_size: int, hashed: int, asynchronous: bool = False
) -> Any:
    """vLLM's scheduler; ``hashed``: tokens that it hashes at a time."""
    made = AsyncScheduler if asynchronous else Scheduler
    with _default_ascend_config():
        return made(
            config, caches, _Grammars(), block_size, hash_block_size=hashed, mm_registry=_NoImages()
        )


def _share_pages(pair: Pair, caches: Any, ahead: int, asynchronous: bool, spare: int) -> Any:
    """Say how blocks lie in pages, and give as many as a request of the largest length needs."""
    in_flight = MOST_TOKENS * (1 + asynchronous)
    pages, shapes = 1 + spare // 2, []
    for index, group in enumerate(caches.kv_cache_groups):
        shape = pair.shapes[index % len(pair.shapes)]
        spec = group.kv_cache_spec
        shapes.append(shape)
        blocks = -(-(MAX_LENGTH + ahead) // BLOCK)
        if isinstance(spec, MambaSpec):
            blocks = 1 + spec.num_speculative_blocks
        elif isinstance(spec, SlidingWindowSpec):
            blocks = min(blocks, 2 + (spec.sliding_window + ahead + in_flight) // BLOCK)
        pages += -(-blocks // shape.blocks)
    plain = KVCacheConfig(pages, caches.kv_cache_tensors, caches.kv_cache_groups)
    return with_page_shapes(plain, shapes)


@functools.cache
def _blocks_of_one_request(pair: Pair, asynchronous: bool) -> int:
    """The fewest blocks that are not refused for a request of the largest length."""
    for blocks in range(1, 200):
        config = config_of(pair, asynchronous, blocks)
        try:
            core.get_kv_cache_configs(config, [specs_of(pair)], [2**24])
        except ValueError:
            continue
        return blocks
    raise AssertionError("any number of blocks is refused")


def _set_block_size(cache_config: Any, groups: Sequence[Any]) -> None:
    """vLLM sets it to the least of groups with keys of tokens."""
    sizes = [
        group.kv_cache_spec.block_size
        for group in groups
        if not isinstance(group.kv_cache_spec, MambaSpec)
    ]
    cache_config.block_size = min(sizes)


class _Grammars:
    """No request has one."""

    def should_advance(self, request: Any) -> bool:
        return False

    def accept_tokens(self, *_: Any) -> bool:
        """Asked by vLLM 0.30.0, as is the next one."""
        return True

    def validate_tokens(self, request: Any, tokens: list[int]) -> list[int]:
        return tokens


class _NoImages:
    def supports_multimodal_inputs(self, model_config: Any) -> bool:
        return False
