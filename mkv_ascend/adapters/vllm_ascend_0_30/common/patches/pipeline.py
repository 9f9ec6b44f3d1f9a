# SPDX-License-Identifier: Apache-2.0
"""Draft tokens of a pipeline on model runner V1 of vllm-ascend 0.30.0rc2.

vllm-ascend holds requests back there whose verify step runs, and sends draft tokens with the output
of their step. It hands them out through a method that vLLM 0.30.0 no longer has. Applied in the
engine core of a target in stages that has a draft.
"""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.common.patches.verify_steps_in_flight import hand_out
from mkv_ascend.adapters.patching import patch


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
