# SPDX-License-Identifier: Apache-2.0
"""Build target and draft as vLLM builds them, on the meta device, and tell what their layers keep.

The configuration, the model classes, the backends and the specs are those of an engine; weights
have no memory, ranks other than one do not exist, and nothing is ever computed. A process builds
once: each stage of a pipeline has one of its own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

from mkv_ascend import host_versions
from mkv_ascend.adapters.common.judge.front_check import BuildError, failed
from mkv_ascend.adapters.common.judge.model_work import UntoldError, weight_bytes, works_of
from mkv_ascend.adapters.installed import adapter
from mkv_ascend.advice.work import Works
from mkv_ascend.child_process import in_a_copy
from mkv_ascend.layout.planning import PlanInputs
from mkv_ascend.layout.report import OtherGrouping
from mkv_ascend.rules.refusal import Refusal, RefusedError

if TYPE_CHECKING:
    from vllm.config import VllmConfig


class JudgingHost(Protocol):
    """What differs between hosts: the module of an adapter, which has these functions."""

    def prepare_grouping(self, config: VllmConfig, specs: Mapping[str, Any]) -> None:
        """Do what an engine core does with the models' specs before it groups them."""

    def group_specs(
        self, specs: dict[str, Any], tokens: int, tokens_per_step: int, encoder_tokens: int = 0
    ) -> dict[str, Any]:
        """vLLM's own grouping of these specs: the fields of ``OtherGrouping``."""


@dataclass(frozen=True)
class Built:
    """What one stage of both models keeps on a rank.

    ``inputs``: of the plan; None with the reason in ``unplanned``. ``weights``: bytes of target
    and draft. ``shared``: layers without a cache, with those whose cache they read. ``other``:
    vLLM's own grouping, None where it was not asked for. ``works``: None where they were not asked
    for, or with the reason in ``untold``.
    """

    inputs: PlanInputs | None
    unplanned: str
    weights: tuple[int, int]
    shared: tuple[tuple[str, str], ...] = ()
    other: OtherGrouping | None = None
    works: Works | None = None
    untold: str = ""


@dataclass(frozen=True)
class Asked:
    """What is told besides: ``grouping``, vLLM's own; ``works``, of the models."""

    grouping: bool = False
    works: bool = False


def build(config: VllmConfig, host: JudgingHost, asked: Asked) -> list[Built]:
    """Both models of an engine, stage by stage of the pipeline; a process of its own for each.

    Raises:
        BuildError: whatever vLLM, vllm-ascend or ours raise.
    """
    return [
        _in_a_process(functools.partial(_stage, config, host, stage, asked))
        for stage in range(config.parallel_config.pipeline_parallel_size)
    ]


def _in_a_process(build_stage: Callable[[], Built]) -> Built:
    """What a copy of this process builds: groups and layers of a process cannot be taken back."""

    def built_or_failed() -> Built | BuildError:
        try:
            return build_stage()
        except BaseException as error:  # Whatever they raise is the answer.
            return failed(error)

    try:
        found = in_a_copy(built_or_failed)
    except EOFError:
        raise BuildError("the process that builds the models ended") from None
    if isinstance(found, BuildError):
        raise found
    return found


def _stage(config: VllmConfig, host: JudgingHost, stage: int, asked: Asked) -> Built:
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    from mkv_ascend.adapters.common.kv_cache import planned_groups

    adapter().patch_worker()
    _pretend_ranks(config, stage)
    runner = _runner_with_models(config)
    speculative = config.speculative_config
    method = None if speculative is None else str(speculative.method)
    draft = getattr(getattr(runner, "drafter", None), "model", None)
    _refuse_untold_tokens(config, draft)
    weights = weight_bytes(runner.model, draft, method)
    specs = runner.get_kv_cache_spec()
    if not specs:
        return Built(None, "no layer of these models keeps a KV cache", weights)
    if (reason := adapter().runner_host().why_not_planned(config, [specs])) is not None:
        return Built(None, f"vllm-ascend arranges the caches itself: {reason}", weights)
    backends = _backends(config, runner)
    stock = None
    if asked.grouping:
        encoder = config.scheduler_config.max_num_encoder_input_tokens
        drafted = config.num_speculative_tokens if speculative else 0
        length = config.model_config.max_model_len
        stock = OtherGrouping(
            **host.group_specs(copy.deepcopy(specs), length, 1 + drafted, encoder)
        )
    # As in an engine core, whose functions are replaced when specs are registered.
    register_all_kvcache_specs(config)
    host.prepare_grouping(config, specs)
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    inputs = planned_groups.inputs_of(config, specs, groups)
    layers = tuple(replace(layer, backend=backends[layer.layout.layer]) for layer in inputs.layers)
    inputs = replace(inputs, layers=layers)
    shared = tuple(sorted(runner.shared_kv_cache_layers.items()))
    built = Built(inputs, "", weights, shared, stock)
    if not asked.works:
        return built
    try:
        return replace(built, works=works_of(config, inputs, runner, draft))
    except UntoldError as error:
        return replace(built, untold=str(error))


def _refuse_untold_tokens(config: VllmConfig, draft: Any) -> None:
    """What model runner V2 refuses behind the draft's loading, and V1 passes over."""
    asked = getattr(config.speculative_config, "use_local_argmax_reduction", False)
    if draft is None or not asked or not getattr(config, "use_v2_model_runner", False):
        return
    if not hasattr(draft, "get_top_tokens"):
        refusal = Refusal(
            "draft-option",
            "use_local_argmax_reduction is set, and the draft's class "
            f"{type(draft).__name__} has no get_top_tokens in {host_versions.vllm()}",
            "drafts whose class says its likeliest tokens",
            "leave use_local_argmax_reduction out",
        )
        raise RefusedError([refusal])


def _backends(config: VllmConfig, runner: Any) -> dict[str, str]:
    """Backend by layer; the class of those that the catalog does not have."""
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    from mkv_ascend.adapters.common.attention import layers

    chosen = {
        choice.request.name: choice.backend.name
        for choice in layers.all_choices(config, runner.draft_layers())
    }
    found = get_layers_from_vllm_config(config, AttentionLayerBase)
    return {
        name: chosen.get(name) or layer.get_attn_backend().__name__ for name, layer in found.items()
    }


def _pretend_ranks(config: VllmConfig, stage: int) -> None:
    """Process groups of as many ranks as asked for, of which this is the first of a stage."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import FakeProcessGroup
    from torch.testing._internal.distributed.fake_pg import FakeStore
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, parallel_state
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
    from vllm_ascend.ascend_config import init_ascend_config
    from vllm_ascend.distributed.parallel_state import init_ascend_model_parallel
    from vllm_ascend.utils import adapt_patch, register_ascend_customop

    from mkv_ascend.adapters.common.patches import experts

    adapt_patch()
    register_ascend_customop(config)
    init_ascend_config(config)

    def pretended(options: Any, _: Any = None) -> Any:
        return FakeProcessGroup._create_internal(options.group_rank, options.group_size)

    # Groups of experts ask for the name of a communicator.
    fake: Any = FakeProcessGroup
    fake.get_hccl_comm_name = lambda *_: "pretended"
    name = "mkv_ascend_pretended"
    devices = ["cpu", "npu"]
    dist.Backend.register_backend(name, pretended, extended_api=True, devices=devices)
    new_group = dist.new_group
    dist.new_group = lambda ranks=None, *_, **__: new_group(ranks, backend=name)
    parallel = config.parallel_config
    ranks = parallel.world_size_across_dp
    rank = stage * (parallel.world_size // parallel.pipeline_parallel_size)
    # One of several nodes, or a rank of several copies, is built as the first one.
    parallel.nnodes, parallel.data_parallel_rank, parallel.rank = 1, 0, rank
    dist.init_process_group(name, store=FakeStore(), rank=rank, world_size=ranks)
    # What other ranks would have to answer.
    MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)
    dist.broadcast_object_list = lambda *_, **__: None
    dist.all_gather_object = lambda found, own, *_, **__: found.__setitem__(
        slice(None), [own] * len(found)
    )
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(parallel.world_size, rank, "env://", 0, name)
        ensure_model_parallel_initialized(
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
            parallel.prefill_context_parallel_size,
            parallel.decode_context_parallel_size,
        )
        init_ascend_model_parallel(parallel)
        experts.make_for_draft(config)


def _runner_with_models(config: VllmConfig) -> Any:
    """Our model runner; both models are built, and nothing of them is loaded."""
    import torch
    from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader import get_model, get_model_loader
    from vllm.platforms import current_platform

    from mkv_ascend.adapters.common.runner import MkvModelRunner

    get_model_loader(config.load_config)  # An engine meets an unknown --load-format here.
    _compute_tables_where_needed()
    _keep_tables_off_the_device()
    with set_current_vllm_config(config):
        runner = MkvModelRunner(config, torch.device("npu:0"))
        runner.model = _on_meta(vllm_config=config)
        target = set(get_layers_from_vllm_config(config, AttentionLayerBase))
        drafter: Any = getattr(runner, "drafter", None)
        if hasattr(drafter, "_get_model"):
            _replace_everywhere(get_model, _on_meta)
            drafter.model = drafter._get_model()
            both = get_layers_from_vllm_config(config, AttentionLayerBase)
            drafter._draft_attn_layer_names = set(both) - target
    # As executors do once the models are there: backends may ask for other blocks (vLLM 0.30.0).
    current_platform.update_block_size_for_backend(config)
    return runner


def _on_meta(*, vllm_config: VllmConfig, model_config: Any = None, **options: Any) -> Any:
    """In place of vLLM's ``get_model``."""
    import torch
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    model_config = model_config or vllm_config.model_config
    options.pop("load_config", None)
    with set_default_torch_dtype(model_config.dtype), torch.device("meta"):
        return initialize_model(vllm_config=vllm_config, model_config=model_config, **options)


def _replace_everywhere(original: Any, replacement: Any) -> None:
    """Also in the modules that have imported it."""
    name = original.__name__
    for module in list(sys.modules.values()):
        package = getattr(module, "__name__", "").split(".")[0]
        if package in ("vllm", "vllm_ascend") and vars(module).get(name) is original:
            vars(module)[name] = replacement


def _compute_tables_where_needed() -> None:
    """What layers compute when they are made, where that needs memory.

    Some rotary tables are computed, maps of experts are looked through, and counters of experts are
    put on the device (0.30.0rc2).
    """
    import torch
    from vllm.model_executor.layers.fused_moe.expert_map_manager import determine_expert_map
    from vllm.model_executor.layers.rotary_embedding import get_rope
    from vllm_ascend.eplb.core.eplb_utils import init_eplb_config

    tensors: Any = torch.Tensor
    put = tensors.npu

    @functools.wraps(put)
    def put_what_is_there(tensor: Any, *args: Any, **options: Any) -> Any:
        return tensor if tensor.is_meta else put(tensor, *args, **options)

    tensors.npu = put_what_is_there
    for function in (get_rope, determine_expert_map, init_eplb_config):

        def with_memory(*args: Any, function: Any = function, **options: Any) -> Any:
            # A table without memory is copied, or meets one that has some.
            with contextlib.suppress(RuntimeError):
                if function is get_rope:
                    return function(*args, **options)
            with torch.device("cpu"):
                return function(*args, **options)

        _replace_everywhere(function, functools.wraps(function)(with_memory))


def _keep_tables_off_the_device() -> None:
    """DeepSeek-V4's rotary tables would have 4 GiB there."""
    from vllm_ascend.ops import rope_dsv4

    rope_dsv4.current_platform = SimpleNamespace(device_type="meta")


class GroupingHost(Protocol):
    """What differs between hosts: the module of an adapter, which has these functions."""

    def complete(self, config: Any) -> None:
        """Add what this vLLM reads besides to the few fields of its configuration."""

    def block_bytes(self, groups: list[Any]) -> tuple[int, int]:
        """Bytes of one block id: as vLLM counts them, and as they are kept."""


def group_specs(
    host: GroupingHost,
    specs: dict[str, Any],
    tokens: int,
    tokens_per_step: int,
    encoder_tokens: int = 0,
) -> dict[str, Any]:
    """vLLM's own grouping of its own specs, by its own functions with vllm-ascend's patches.

    For a plan that is shown, beside ours. Plugins' functions are not installed yet when it is
    asked.
    """
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    # The few fields that vLLM's grouping and its memory estimate read.
    config: Any = SimpleNamespace(
        max_concurrent_batches=1,
        model_config=SimpleNamespace(max_model_len=tokens),
        # No worker of ours: the functions of mkv_ascend are not installed.
        parallel_config=SimpleNamespace(
            worker_cls="", decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False,
            max_num_batched_tokens=tokens_per_step,
            max_num_encoder_input_tokens=encoder_tokens,
        ),
        cache_config=SimpleNamespace(mamba_cache_mode="none", num_gpu_blocks_override=None),
        speculative_config=None,
    )
    host.complete(config)
    register_all_kvcache_specs(config)
    try:
        groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    except (NotImplementedError, AssertionError, ValueError) as error:
        # Some of vLLM's assertions have no message.
        words = ": ".join(filter(None, (type(error).__name__, str(error))))
        place = traceback.extract_tb(error.__traceback__)[-1]
        return {"error": f"{words} ({Path(place.filename).name}:{place.lineno})"}
    held: int = kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups)
    counted, kept = host.block_bytes(groups)
    return {"groups": len(groups), "request_blocks": -(-held // counted), "block_bytes": kept}
