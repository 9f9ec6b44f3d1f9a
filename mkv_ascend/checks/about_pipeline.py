# SPDX-License-Identifier: Apache-2.0
"""What a draft cannot be combined with where the target is spread over pipeline stages.

The draft is whole, on the last stage. So it can read what the last stage has or is sent: hidden
states of layers, but no keys.
"""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.checks import about_draft_inputs
from mkv_ascend.checks.facts import ServeFacts, SpeculationFacts
from mkv_ascend.checks.model import ROLLED_BACK
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]

TAKE_THE_TARGETS_KEYS = ("gemma4_assistant",)
"""Types of drafts that attend to the target's own caches."""

STEP3P5 = "step3p5"

INSTEAD = "spread the target by --tensor-parallel-size instead"

WHOLE_ON_EACH_STAGE = "granitemoehybrid"
"""Model type whose class in vLLM, 0.23.0's and 0.30.0's, says that it is made for stages: it looks
for weights of all layers on each stage, with a draft or without, and runs layers of the others."""


def stages(facts: ServeFacts) -> Iterator[Refusal]:
    """A draft over several pipeline stages."""
    speculation, count = facts.speculation, facts.whole("pipeline_parallel_size", 1)
    transfer = facts.engine.get("kv_transfer_config")
    prefills = isinstance(transfer, dict) and transfer.get("kv_role") == "kv_producer"
    if speculation is None or count < 2 or prefills:
        return
    for why, change in _reasons(facts, speculation):
        yield Refusal(
            "pipeline",
            f"--pipeline-parallel-size is {count} and there is a draft ({speculation.method}): "
            + why,
            "draft models, heads on hidden states of the target (eagle, eagle3, mtp, dflash), and "
            "tokens that are looked up, for text on targets of attention layers, of gated delta "
            "nets, of Mamba2 layers (but Granite 4) and of short convolutions",
            change,
        )


def _reasons(facts: ServeFacts, speculation: SpeculationFacts) -> Iterator[tuple[str, str]]:
    """Why such a draft is not served over stages, and what to change."""
    target, draft = facts.target, facts.draft
    if target.recurrent is not None:
        yield from _beside_states(target.model_type, target.recurrent)
    if not speculation.has_cache:
        return
    if draft is not None and draft.model_type in TAKE_THE_TARGETS_KEYS:
        yield "it reads keys of the target, which lie on several stages", INSTEAD
    shares = facts.ascend("enable_flashcomm1") and facts.tensor_parallel > 1
    if speculation.method == "eagle3" and shares:
        yield (
            "with enable_flashcomm1 a rank has the hidden states of a share of the tokens",
            "leave enable_flashcomm1 out",
        )
    states = draft.recurrent if draft is not None and speculation.method != "mtp" else None
    if states is not None and states not in ROLLED_BACK:
        yield "the draft's states are not taken back there", "choose a draft of attention layers"
    if layers_in_turn(facts) > 1:
        yield "its layers draft in turn, by a proposal of vllm-ascend's own", INSTEAD
    if "compress_ratios" in target.text:
        yield "compressed caches are not planned by stage", INSTEAD
    if about_draft_inputs.takes_images(facts):
        yield (
            "the last stage is not given the images of a prompt",
            "set --language-model-only, or " + INSTEAD,
        )
    if facts.context_parallel > 1:
        yield (
            "context parallelism beside it is not served",
            "leave prefill_context_parallel_size and decode_context_parallel_size out",
        )
    if facts.engine.get("distributed_executor_backend") == "external_launcher":
        yield (
            "with external_launcher all stages sample",
            "leave distributed_executor_backend out",
        )


def _beside_states(model_type: str, kind: str) -> Iterator[tuple[str, str]]:
    """Why drafts are not served over stages of a target with recurrent layers of a kind."""
    if model_type == WHOLE_ON_EACH_STAGE:
        yield "vLLM's class of Granite 4 looks for the weights of all stages on each one", INSTEAD
    elif kind not in ROLLED_BACK:
        yield f"no test judges states of {kind} there", INSTEAD


def layers_in_turn(facts: ServeFacts) -> int:
    """Drafting layers of Step-3.5, of which each pass runs another; 0 for other drafts."""
    speculation, target = facts.speculation, facts.target
    in_turn = speculation is not None and speculation.method == "mtp"
    return target.mtp_layers if in_turn and target.model_type == STEP3P5 else 0


CHECKS = (stages,)
