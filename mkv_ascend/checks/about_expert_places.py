# SPDX-License-Identifier: Apache-2.0
"""Where experts lie on model runner V1: ``eplb_config`` of ``--additional-config``.

``dynamic_eplb`` moves experts between ranks; ``num_redundant_experts`` asks for copies of some,
``expert_map_path`` says where each lies. What is wrong of them is the target's alone, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mkv_ascend import host_versions
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]

MAP, COPIES = "expert_map_path", "num_redundant_experts"
MOVES = ("dynamic_eplb", "expert_map_record_path")
"""Either of them moves experts, or counts what it would move."""

WITHOUT_COPIES = frozenset(
    {
        *("deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite"),
        *("hy_v3", "pangu_ultra_moe"),
    }
)
"""Model types whose drafting layers vLLM 0.30.0 loads without copies of experts."""

FEWEST_RANKS, MOST_EXPERTS, MOST_TOKENS = 16, 24, 512
"""Ranks of experts, experts of each and tokens of each tensor parallel rank, with which no step of
an Atlas A2 gathers tokens of all ranks (``_select_a2_moe_comm_method`` and
``set_mc2_tokens_capacity`` of vllm-ascend's ``ascend_forward_context``)."""


def _asked(facts: ServeFacts) -> Mapping[str, Any]:
    """``eplb_config`` of vllm-ascend; empty on model runner V2, where it has other fields."""
    found = facts.ascend("eplb_config")
    return found if facts.runner == "v1" and isinstance(found, Mapping) else {}


def _ranks_of_experts(facts: ServeFacts) -> int:
    """Ranks that share experts out; 1 where none do."""
    if not facts.engine.get("enable_expert_parallel"):
        return 1
    others = ("data_parallel_size", "prefill_context_parallel_size")
    ranks = facts.tensor_parallel
    for name in others:
        ranks *= facts.whole(name, 1)
    return ranks


def _gathers(facts: ServeFacts) -> bool:
    """Whether steps gather tokens of all ranks: an Atlas A2's, unless it dispatches each."""
    if facts.device.generation is not DeviceGeneration.A2:
        return False
    ranks, tokens = _ranks_of_experts(facts), facts.whole("max_num_batched_tokens", 0)
    return not (
        ranks >= FEWEST_RANKS
        and facts.target.num_experts // ranks <= MOST_EXPERTS
        and bool(facts.ascend("enable_prefill_mc2"))
        and 0 < tokens <= MOST_TOKENS * facts.tensor_parallel
    )


def moves_without_ranks(facts: ServeFacts) -> Iterator[Refusal]:
    """Experts that no ranks share out: vllm-ascend's layers stop in their constructor."""
    asked = _asked(facts)
    named = [name for name in MOVES if asked.get(name)]
    if not named or not facts.target.num_experts or _ranks_of_experts(facts) > 1:
        return
    yield Refusal(
        "expert-places",
        f"{named[0]} of eplb_config is given, and no ranks share experts out: layers of "
        f"{host_versions.vllm_ascend()} stop in their constructor",
        "--enable-expert-parallel on several ranks",
        f"add it, or leave {named[0]} out",
    )


def copies_without_moves(facts: ServeFacts) -> Iterator[Refusal]:
    """Copies where nothing moves: vllm-ascend 0.30.0rc2 makes none, and then asks for as many.

    ``AscendRoutedExperts.init_eplb``. vllm-ascend 0.23.0 does not read the option then.
    """
    asked = _asked(facts)
    if facts.rules is None or facts.rules.loads_experts_by_map or not facts.target.num_experts:
        return
    if asked.get(COPIES) and not any(asked.get(name) for name in (MAP, *MOVES)):
        yield Refusal(
            "expert-places",
            f"{COPIES} of eplb_config is {asked[COPIES]}, and experts do not move: layers of "
            f"{host_versions.vllm_ascend()} make room for no copies and stop in their constructor",
            "experts without copies",
            f"leave {COPIES} out",
        )


def copies_of_drafting_layers(facts: ServeFacts) -> Iterator[Refusal]:
    """Copies of a drafting layer's experts: loaders of vLLM 0.30.0 leave them without weights.

    They name no copies where they ask whose weights go where
    (``fused_moe_make_expert_params_mapping``); other layers are asked themselves.
    """
    asked, speculation = _asked(facts), facts.speculation
    if facts.rules is None or facts.rules.loads_experts_by_map:
        return
    if speculation is None or speculation.method != "mtp":
        return
    if facts.target.model_type not in WITHOUT_COPIES:
        return
    if asked.get(COPIES) and any(asked.get(name) for name in (MAP, *MOVES)):
        yield Refusal(
            "expert-places",
            f"{COPIES} of eplb_config is {asked[COPIES]}, and the method is mtp: "
            f"{host_versions.vllm()} loads no weights into copies of experts of drafting layers",
            "dynamic_eplb without copies, or a draft without experts",
            f"leave {COPIES} out, or the draft",
        )


def map_unlike_weights(facts: ServeFacts) -> Iterator[Refusal]:
    """A map of experts, of which vllm-ascend 0.30.0rc2 loads none where the map has it."""
    if facts.speculation is None or not _asked(facts).get(MAP) or _ranks_of_experts(facts) == 1:
        return
    if facts.rules is None or facts.rules.loads_experts_by_map or not facts.target.num_experts:
        return
    yield Refusal(
        "expert-places",
        f"{MAP} of eplb_config is given, and {host_versions.vllm_ascend()} loads each expert "
        "where it lies without a map, so that tokens of the target are wrong",
        "dynamic_eplb, which moves experts after they are loaded",
        f"leave {MAP} out",
    )


def places_in_gathered_steps(facts: ServeFacts) -> Iterator[Refusal]:
    """A map or copies where steps gather tokens of all ranks.

    There vllm-ascend looks up the number of a place in the map of experts
    (``TokenDispatcherWithAllGather.token_dispatch``), which has other numbers with a map, and ends
    before the last copy. Without either the number of each place is that of the expert first there.
    """
    asked = _asked(facts)
    if facts.speculation is None or _ranks_of_experts(facts) == 1 or not facts.target.num_experts:
        return
    # Maps of other hosts are refused wherever steps run.
    by_map = facts.rules is None or facts.rules.loads_experts_by_map
    named = [MAP] if by_map and asked.get(MAP) else []
    named += [COPIES] if asked.get(COPIES) and any(asked.get(name) for name in MOVES) else []
    if named and _gathers(facts):
        yield Refusal(
            "expert-places",
            f"{named[0]} of eplb_config is given, and steps of an Atlas A2 gather the tokens of "
            f"all ranks: {host_versions.vllm_ascend()} then looks up the number of a place among "
            "those of experts, and tokens of the target are wrong, or the engine ends",
            f"dynamic_eplb without map and copies; {FEWEST_RANKS} ranks of at most {MOST_EXPERTS} "
            "experts or more, enable_prefill_mc2 and --max-num-batched-tokens of at most "
            f"{MOST_TOKENS} for each tensor parallel rank; an Atlas A3",
            f"leave {named[0]} out",
        )


CHECKS = (
    *(moves_without_ranks, copies_without_moves, copies_of_drafting_layers, map_unlike_weights),
    places_in_gathered_steps,
)
