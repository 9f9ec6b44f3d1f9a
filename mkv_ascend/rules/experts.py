# SPDX-License-Identifier: Apache-2.0
"""Experts that move, have copies or lie where a map says, and weights that are fetched.

``dynamic_eplb`` of ``eplb_config`` of ``--additional-config`` moves experts between ranks on model
runner V1; ``num_redundant_experts`` asks for copies of some, ``expert_map_path`` says where each
lies. What is wrong of them is the target's alone, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mkv_ascend import host_versions
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.refusal import Refusal, Rule

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


def _asked(facts: Facts) -> Mapping[str, Any]:
    """``eplb_config`` of vllm-ascend; empty on model runner V2, where it has other fields."""
    found = facts.ascend.get("eplb_config")
    return found if facts.runner == "v1" and isinstance(found, Mapping) else {}


def _moves(facts: Facts) -> bool:
    return any(_asked(facts).get(name) for name in MOVES)


def _ranks_of_experts(facts: Facts) -> int:
    """Ranks that share experts out; 1 where none do."""
    if not facts.expert_parallel:
        return 1
    return facts.tensor_parallel * facts.data_parallel * facts.prefill_context_parallel


def _gathers(facts: Facts) -> bool:
    """Whether steps gather tokens of all ranks: an Atlas A2's, unless it dispatches each."""
    if facts.device.generation is not DeviceGeneration.A2:
        return False
    ranks, tokens = _ranks_of_experts(facts), facts.max_num_batched_tokens
    return not (
        ranks >= FEWEST_RANKS
        and facts.target.num_experts // ranks <= MOST_EXPERTS
        and bool(facts.ascend.get("enable_prefill_mc2"))
        and 0 < tokens <= MOST_TOKENS * facts.tensor_parallel
    )


def places_of_experts(facts: Facts) -> Iterator[Refusal]:
    """A map that a host does not load by, and a map or copies where steps gather all tokens.

    In gathered steps vllm-ascend looks up the number of a place in the map of experts
    (``TokenDispatcherWithAllGather.token_dispatch``), which has other numbers with a map, and ends
    before the last copy. Without either the number of each place is that of the expert first there.
    """
    asked = _asked(facts)
    if facts.speculation is None or _ranks_of_experts(facts) == 1 or not facts.target.num_experts:
        return
    by_map = facts.host.loads_experts_by_map
    if asked.get(MAP) and not by_map:
        yield Refusal(
            "expert-places",
            f"{MAP} of eplb_config is given, and {host_versions.vllm_ascend()} loads each expert "
            "where it lies without a map, so that tokens of the target are wrong",
            "dynamic_eplb, which moves experts after they are loaded",
            f"leave {MAP} out",
        )
    named = [MAP] if by_map and asked.get(MAP) else []
    named += [COPIES] if asked.get(COPIES) and _moves(facts) else []
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
    Rule(
        "expert-places",
        lambda facts: (
            facts.target.num_experts
            and _ranks_of_experts(facts) == 1
            and (named := [name for name in MOVES if _asked(facts).get(name)])
            and {"name": named[0]}
        ),
        "{name} of eplb_config is given, and no ranks share experts out: layers of {ascend} stop "
        "in their constructor",
        "--enable-expert-parallel on several ranks",
        "add it, or leave {name} out",
    ),
    # Loaders of vLLM 0.30.0 leave them without weights (``fused_moe_make_expert_params_mapping``).
    Rule(
        "expert-places",
        lambda facts: (
            not facts.host.loads_experts_by_map
            and facts.method == "mtp"
            and facts.target.model_type in WITHOUT_COPIES
            and (copies := _asked(facts).get(COPIES))
            and {"copies": copies}
        ),
        f"{COPIES} of eplb_config is {{copies}}, and the method is mtp: {{vllm}} loads no weights "
        "into copies of experts of drafting layers",
        "dynamic_eplb without copies, or a draft without experts",
        f"leave {COPIES} out, or the draft",
    ),
    places_of_experts,
    Rule(
        "experts",
        lambda facts: (
            facts.drafts is not None
            and facts.sequence_parallel
            and facts.drafts[1].num_experts
            and not facts.target.num_experts
        ),
        "sequence parallelism (enable_flashcomm1) is on, and the draft {facts.draft.name} has "
        "{facts.draft.num_experts} experts where the target has none",
        "a draft without experts, or no sequence parallelism",
        "leave enable_flashcomm1 out",
    ),
    Rule(
        "host-option",
        lambda facts: facts.cpu_offload_gb > 0,
        "--cpu-offload-gb is {facts.cpu_offload_gb:g}: vLLM has no view of the host's memory for "
        "an NPU, and ends while it loads weights",
        "weights on the device, in 8 bits or on more ranks",
        "leave --cpu-offload-gb out",
    ),
    # The hosts' offloader takes the layers of one model, and ends with an assertion at the next.
    Rule(
        "host-option",
        lambda facts: facts.prefetches_weights and facts.method == "draft_model",
        "weights are fetched layer by layer (--offload-backend prefetch, --offload-group-size) "
        "beside a draft model, and vllm-ascend does so for one model",
        "weights of both on the device, or no draft model",
        "leave --offload-backend and --offload-group-size out",
    ),
    # vllm-ascend 0.23.0's scheduler lacks an argument that vLLM gives.
    Rule(
        "host-option",
        lambda facts: facts.ascend.get("SLO_limits_for_dynamic_batch") not in (None, -1),
        "SLO_limits_for_dynamic_batch of --additional-config is given, and vllm-ascend has no "
        "scheduler for it that starts",
        "steps of --max-num-batched-tokens",
        "leave it out",
    ),
)
