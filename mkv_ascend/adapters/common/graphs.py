# SPDX-License-Identifier: Apache-2.0
"""The target's verify steps in full graphs, and the memory of graphs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch_npu
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from vllm import envs
from vllm.config import CUDAGraphMode
from vllm.distributed.kv_transfer import has_kv_transfer_group
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import MambaSpec
from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder, AscendAttentionState
from vllm_ascend.compilation import acl_graph
from vllm_ascend.worker import model_runner_v1

from mkv_ascend.adapters.common.kv_cache.kv_groups import HARDLY_ANY, planned_for
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import record, replaced

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.utils import AttentionGroup


# The target's verify steps in full graphs, whatever proposes the drafts.
#
# A verify step has K + 1 tokens per request. vllm-ascend 0.23.0 knows this only for the methods
# eagle, eagle3 and mtp. For the others (draft_model, ngram, suffix) it takes a verify step for a
# decode with one token per request: in captures, and in MLA's updates of captured launches.
#
# Where all tokens are drafted at once (dflash, parallel drafting), its builder gives a verify
# step's lengths on the device. The operator for sinks needs them as a list when it is captured,
# and that is a host read.


class _Seen:
    """A speculative configuration of which a subclass changes one answer."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)


class OneTokenPerPass(_Seen):
    """A speculative configuration that does not draft in parallel."""

    parallel_drafting = False


class SeveralTokensPerRequest(_Seen):
    """A speculative configuration whose method is one of those that vllm-ascend looks for.

    Args:
        tokens: draft tokens that each request verifies; None: those of the configuration.
    """

    def __init__(self, config: Any, tokens: int | None) -> None:
        super().__init__(config)
        self.num_speculative_tokens = config.num_speculative_tokens if tokens is None else tokens

    def use_eagle(self) -> bool:
        """vllm-ascend asks this to learn whether requests of a verify step have K + 1 tokens."""
        return True


def for_updates(config: Any, tokens: int | None = None) -> Any:
    """The speculative configuration that updates of captured launches see.

    Args:
        tokens: draft tokens that each request verifies; None: those of the configuration.
    """
    return None if config is None else SeveralTokensPerRequest(config, tokens)


def attends(groups: Iterable[Iterable[AttentionGroup]]) -> bool:
    """Whether a layer of these attention groups is anything but recurrent.

    A pipeline stage may have states alone. No captured launch of it is updated, and vllm-ascend
    0.23.0, which would look for some, asks for a configuration that is not set in a replay.
    """
    specs = (group.kv_cache_spec for kv_group in groups for group in kv_group)
    return not all(isinstance(spec, MambaSpec) for spec in specs)


def have_readers(config: VllmConfig, groups: Iterable[Iterable[AttentionGroup]]) -> bool:
    """Whether a layer of these attention groups reads another layer's cache, without own keys."""
    layers = config.compilation_config.static_forward_context
    names = (name for kv_group in groups for group in kv_group for name in group.layer_names)
    return any(getattr(layers.get(it), "kv_sharing_target_layer_name", None) for it in names)


def state_of(
    state: AscendAttentionState,
    max_query_len: int,
    verifies: bool,
    reads_caches: Callable[[], bool] = lambda: False,
) -> AscendAttentionState:
    """The attention state of a step; several tokens per request are a chunk, not a decode.

    Without chunked prefill vllm-ascend calls a step of prompts and verified drafts a prefill behind
    prefix hits, and MLA then takes each request's tokens for one. And in a prefill without hits it
    attends to a layer's own keys, of which one that reads another layer's cache has none.

    Args:
        verifies: whether requests verify drafts.
        reads_caches: whether there is such a layer.
    """
    if state is AscendAttentionState.PrefillNoCache and reads_caches():
        return AscendAttentionState.ChunkedPrefill
    one_token_each = {AscendAttentionState.DecodeOnly}
    if verifies:
        one_token_each.add(AscendAttentionState.PrefillCacheHit)
    if state in one_token_each and max_query_len > 1:
        return AscendAttentionState.ChunkedPrefill
    return state


VERIFY_STEPS = record(
    name="verify steps of any method in full graphs",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_full_graph_params_if_needed",
        "vllm_ascend.attention.attention_v1:AscendAttentionMetadataBuilder.__init__",
    ),
    reads=(
        "vllm_ascend.attention.mla_v1:AscendMLAImpl.update_graph_params",
        "vllm_ascend.attention.attention_v1:AscendAttentionMetadataBuilder.build",
    ),
)


def take_lengths_on_the_host(builders: Iterable[Any]) -> None:
    """Let the target's builders give a verify step's lengths on the host, for every method.

    The runner keeps the lengths on the host exact for every method.
    """
    for builder in builders:
        if isinstance(builder, AscendAttentionMetadataBuilder) and builder.speculative_config:
            builder.speculative_config = OneTokenPerPass(builder.speculative_config)


# The memory of graphs, measured before the KV cache is sized.
#
# vLLM captures a few graphs against a cache of few blocks, and keeps the memory that all of them
# will take out of the cache. vllm-ascend's worker sizes the cache without asking. Here it asks:
# vLLM's methods do the work, with a pool of its own for these graphs, and what vllm-ascend notes
# of captured graphs is forgotten afterwards.

logger = get_logger(__name__)
SWITCH = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
"""vLLM's own variable; 0 leaves the memory of graphs out."""
NOTES = ("_graph_params", "_draft_graph_params", "_draft_graph_prefill_params")
"""Where vllm-ascend notes captured launches."""

GRAPH_MEMORY = record(
    name="memory of graphs beside the KV cache",
    target=(
        "vllm_ascend.worker.worker:NPUWorker.determine_available_memory",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner.profile_cudagraph_memory",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._cleanup_profiling_kv_cache",
    ),
    reads=(
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._init_minimal_kv_cache_for_profiling",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.capture_model",
        "vllm_ascend.device_allocator.sleep_mem_optimized:AclGraphSleepWakeupManager",
    ),
)


def left_by_graphs(worker: Any, as_the_host: Callable[[], int], measure: Callable[[], int]) -> int:
    """Bytes for the KV cache as ``as_the_host`` says, less those that graphs will take.

    Args:
        measure: captures a few of them, and returns what all will take.

    Raises:
        RuntimeError: it failed; what it leaves behind may not serve requests.
    """
    available = as_the_host()
    if (reason := _why_not_measured(worker)) is not None:
        if reason:
            logger.info("The KV cache is sized without the memory of graphs: %s.", reason)
        return available
    try:
        taken = measure()
    except Exception as error:
        raise RuntimeError(
            f"the memory of graphs cannot be measured before the KV cache is sized: {error}. "
            f"Possible: {SWITCH}=0, which sizes the KV cache without it. Change: set it."
        ) from error
    worker.available_kv_cache_memory_bytes = available - taken
    logger.info(
        "Graphs will take about %.2f MiB (measured), so the KV cache gets %.2f of %.2f MiB. "
        "%s=0 leaves this out.",
        *(number / (1 << 20) for number in (taken, available - taken, available)),
        SWITCH,
    )
    return available - taken


def _why_not_measured(worker: Any) -> str | None:
    """Why graphs are not measured, "" where nothing need be said; None if they are."""
    config = worker.vllm_config
    if config.model_config.enforce_eager:
        return ""
    if config.compilation_config.cudagraph_mode is CUDAGraphMode.NONE:
        return ""
    if config.cache_config.kv_cache_memory_bytes is not None:
        return ""
    if not envs.VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS:
        return f"{SWITCH} is 0"
    if has_kv_transfer_group():
        return "a KV connector takes the first caches that there are"
    return None


@contextlib.contextmanager
def captures_of_runner_v1(runner: Any) -> Iterator[None]:
    """Let vLLM's methods of ``runner`` capture as vllm-ascend's ``capture_model`` lets them."""
    original = model_runner_v1.graph_capture

    def graph_capture(device: torch.device, **_: Any) -> Any:
        """As vllm-ascend's, which chooses its stream itself; vLLM 0.30.0 hands one over."""
        return original(device)

    module = model_runner_v1._get_gpu_model_runner_module_name(runner)
    with (
        replaced(model_runner_v1, "graph_capture", graph_capture),
        model_runner_v1._torch_cuda_wrapper(),
        model_runner_v1._replace_gpu_model_runner_function_wrapper(module),
    ):
        yield


class LayersAsTheyWere:
    """Layers with caches and their implementations, to be put back as they are now.

    vllm-ascend's implementations take a cache once, and keep it for all passes that follow.
    """

    def __init__(self, layers: Iterable[Any]) -> None:
        self._layers = list(layers)
        objects = [*self._layers, *(getattr(layer, "impl", None) for layer in self._layers)]
        self._before = [(found, dict(vars(found))) for found in objects if found is not None]
        self._caches: list[StorageWeakRef] = []

    @contextlib.contextmanager
    def measured_apart(self) -> Iterator[None]:
        """Let graphs that are captured in the block use a pool of their own; then forget them.

        The caches that they are captured against have a page for each token of the largest graph,
        so pages are as small as they can be. As in vllm-ascend's own sleep mode, which captures
        anew when it wakes up. Its notes of captured launches are made by the number of tokens, and
        only once.
        """
        pool = current_platform.graph_pool_handle()
        with contextlib.ExitStack() as stack:
            stack.enter_context(planned_for(HARDLY_ANY))
            stack.enter_context(replaced(type(current_platform), "_global_graph_pool", pool))
            for wrapper in list(acl_graph._acl_graph_wrappers):
                stack.enter_context(replaced(wrapper, "graph_pool", pool))
            for notes in NOTES:
                stack.enter_context(replaced(acl_graph, notes, getattr(acl_graph, notes)))
            try:
                yield
            finally:
                for wrapper in list(acl_graph._acl_graph_wrappers):
                    wrapper.concrete_aclgraph_entries.clear()
                    wrapper.first_run_finished = False

    def note_caches(self) -> None:
        """Note the memory of the layers' caches, without keeping it."""
        tensors = pytree.tree_leaves([getattr(layer, "kv_cache", None) for layer in self._layers])
        self._caches = [
            StorageWeakRef(tensor.untyped_storage())
            for tensor in tensors
            if isinstance(tensor, torch.Tensor) and tensor.numel()
        ]

    def drop_caches(self, drop: Callable[[], None]) -> None:
        """Let go of the caches that graphs were captured with.

        Args:
            drop: drops what holds them beside layers.

        Raises:
            RuntimeError: something still holds one, and might serve requests with it.
        """
        self._put_back()
        drop()
        gc.collect()
        if held := [cache for cache in self._caches if not cache.expired()]:
            raise RuntimeError(
                f"{len(held)} of {len(self._caches)} caches that graphs were captured with are "
                "still held"
            )
        torch_npu.npu.empty_cache()

    def _put_back(self) -> None:
        for found, before in self._before:
            now = vars(found)
            for name in [name for name in now if now[name] is not before.get(name)]:
                if name in before:
                    now[name] = before[name]
                else:
                    del now[name]
