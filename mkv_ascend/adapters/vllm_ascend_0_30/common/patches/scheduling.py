# SPDX-License-Identifier: Apache-2.0
"""What the scheduler hands out: no placeholders beside states, and draft tokens of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mkv_ascend.adapters.common.drafting.kinds_of_drafts import has_recurrent_layers
from mkv_ascend.adapters.common.pipeline import hand_out
from mkv_ascend.adapters.patching import patch

# Keeps drafts that nobody made away from recurrent states.
#
# vLLM (0.30.0, ``Scheduler.schedule``) fills a request that begins with one token up to ``1 + K``
# tokens with placeholders, so that its step looks like a verification: behind a prefix hit that
# ends at the prompt's last token, for instance. All placeholders are rejected, but the row is
# part of a prompt, whose layers keep one state: that after the placeholders.


@patch(
    name="no placeholders beside states",
    target="vllm.v1.core.sched.scheduler:Scheduler.__init__",
    reads=("vllm.v1.core.sched.scheduler:Scheduler.schedule",),
)
def schedule_no_placeholders(
    original: Callable[..., None], scheduler: Any, *args: Any, **kwargs: Any
) -> None:
    """Give a number of drafts for every number of requests: vLLM then fills no request up.

    The number is the same for all, so that nothing else changes.
    """
    original(scheduler, *args, **kwargs)
    config = scheduler.vllm_config
    model = config.model_config
    states = model.is_hybrid or model.is_attention_free or has_recurrent_layers(config)
    if states and scheduler.num_spec_tokens > 0 and scheduler.dynamic_sd_lookup is None:
        requests = config.scheduler_config.max_num_seqs
        scheduler.dynamic_sd_lookup = [scheduler.num_spec_tokens] * (requests + 1)


# Draft tokens of a pipeline on model runner V1 of vllm-ascend 0.30.0rc2.
#
# vllm-ascend holds requests back there whose verify step runs, and sends draft tokens with the
# output of their step. It hands them out through a method that vLLM 0.30.0 no longer has. Applied
# in the engine core of a target in stages that has a draft.


@patch(
    name="draft tokens that come with their step's output",
    target="vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
    reads=(
        "vllm_ascend.patch.platform.patch_pp_mtp:_update_pp_mtp_spec_token_ids",
        "vllm_ascend.patch.platform.patch_pp_mtp:_patch_scheduler_update_after_schedule",
        "vllm_ascend.patch.platform.patch_pp_mtp:_patch_engine_core",
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids",
    ),
)
def hand_out_drafts(original: Any, scheduler: Any, scheduled: Any, output: Any) -> Any:
    """As vllm-ascend's without its draft tokens, then with those that came with the output."""
    output.spec_token_ids = None
    taken_in = original(scheduler, scheduled, output)
    hand_out(scheduler, output)
    return taken_in
