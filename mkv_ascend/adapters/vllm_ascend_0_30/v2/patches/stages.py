# SPDX-License-Identifier: Apache-2.0
"""Drafts over pipeline stages on model runner V2.

vLLM's runner sends sampled tokens and drafts to first stages itself, which take back there what was
rejected. Missing are vllm-ascend's lengths on the host, embeddings for heads that have none, and
stages with nothing but recurrent layers of a hybrid target, or with none of them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vllm.distributed.parallel_state import get_pp_group
from vllm.model_executor.models.utils import PPMissingLayer
from vllm.v1.kv_cache_interface import MambaSpec
from vllm.v1.worker.gpu.cudagraph_utils import ModelCudaGraphManager
from vllm.v1.worker.gpu.spec_decode.dflash import utils as dflash_utils
from vllm.v1.worker.gpu.spec_decode.eagle import utils as eagle_utils

from mkv_ascend.adapters.patching import record, replaced

if TYPE_CHECKING:
    from vllm.config import VllmConfig

IN_STAGES = record(
    name="drafts over pipeline stages on model runner V2",
    target=(
        "vllm_ascend.worker.v2.model_runner:NPUModelRunner.__init__",
        "vllm.v1.worker.gpu.spec_decode.eagle.utils:maybe_share_target_embed",
        "vllm.v1.worker.gpu.spec_decode.dflash.utils:maybe_share_target_embed",
        "vllm.v1.worker.gpu.model_states.mamba_hybrid:MambaHybridModelState.__init__",
        "vllm_ascend.worker.v2.aclgraph_utils:ModelAclGraphManager.run_fullgraph",
    ),
    reads=(
        "vllm_ascend.worker.v2.model_runner:NPUModelRunner._update_seq_lens_cpu",
        "vllm_ascend.worker.v2.model_runner:NPUModelRunner.postprocess_sampled",
        "vllm_ascend.worker.v2.model_runner:NPUModelRunner.postprocess_num_computed_tokens",
        "vllm.v1.worker.gpu.pp_utils:PPHandler.get_prev_sampled_outputs",
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule",
        "vllm.v1.worker.mamba_utils:get_mamba_groups",
        "vllm.v1.worker.gpu.cudagraph_utils:ModelCudaGraphManager.run_fullgraph",
        "vllm_ascend.worker.v2.model_states.mamba_hybrid"
        ":AscendMambaHybridModelState.preprocess_state",
    ),
)


def take_back_on_the_host(runner: Any, config: VllmConfig) -> None:
    """Let a first stage take rejected tokens off its lengths on the host, too."""
    if config.speculative_config is not None and not get_pp_group().is_last_rank:
        runner.sync_spec_pp_cpu_counts = True


@contextlib.contextmanager
def embeddings_left_out() -> Iterator[None]:
    """Let heads that are loaded in the block keep embeddings where the target has none to share.

    Llama's class and a few others have them on the last stage, too. Most have them on the first one
    alone: then a head's are written later, if its checkpoint has none (``share_embeddings``).
    """
    share = eagle_utils.maybe_share_target_embed

    def share_what_is_here(draft: Any, inner: Any, target: Any) -> None:
        found = getattr(target, "embed_tokens", None) or getattr(target, "embedding", None)
        if not isinstance(found, PPMissingLayer):
            share(draft, inner, target)

    with (
        replaced(eagle_utils, "maybe_share_target_embed", share_what_is_here),
        replaced(dflash_utils, "maybe_share_target_embed", share_what_is_here),
    ):
        yield


def do_without_missing_kinds(runner: Any) -> None:
    """Let a stage leave out what only layers need that it has none of: recurrent ones, or others.

    Kept states are copied by the block, and captured launches of attention are updated. The draft
    is left out of the runner's groups already.
    """
    specs = [group.kv_cache_spec for groups in runner.attn_groups for group in groups]
    of_states = [isinstance(spec, MambaSpec) for spec in specs]
    if getattr(runner.model_state, "_align_mode", False) and not any(of_states):
        runner.model_state._align_mode = False
    manager = runner.cudagraph_manager
    if manager is not None and all(of_states):
        manager.run_fullgraph = functools.partial(ModelCudaGraphManager.run_fullgraph, manager)
