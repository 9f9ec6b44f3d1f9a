# SPDX-License-Identifier: Apache-2.0
"""Options of vLLM that only other devices serve; vLLM or vllm-ascend refuse them at the start.

``vllm serve`` would say so in their words, one after another. ``mkv-ascend check`` makes no
configuration of vLLM's, so it has to know.
"""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]


def elastic_experts(facts: ServeFacts) -> Iterator[Refusal]:
    """Experts whose ranks come and go.

    vLLM asks for ``--enable-eplb`` beside it. That is refused by vLLM 0.23.0 on an NPU, by
    vllm-ascend 0.30.0rc2 on model runner V1, and on V2 with elastic experts, which it would move
    while steps run.
    """
    if facts.engine.get("enable_elastic_ep"):
        yield Refusal(
            "host-option",
            f"--enable-elastic-ep is given, which {host_versions.vllm_ascend()} does not serve",
            "as many data parallel ranks as the server is started with",
            "leave --enable-elastic-ep out",
        )


def replayed_states(facts: ServeFacts) -> Iterator[Refusal]:
    """States that are computed again from the last inputs, beside drafts.

    vLLM 0.30.0 has it for classes of Kimi-K3's. Those of vllm-ascend 0.30.0rc2, which take their
    place, have it not.
    """
    if facts.engine.get("use_replayssm") and facts.speculation is not None:
        yield Refusal(
            "host-option",
            "--use-replayssm is given beside --speculative-config, and no class of "
            f"{host_versions.vllm_ascend()} takes states back in this way",
            "states of each draft token, which are kept without the option",
            "leave --use-replayssm out",
        )


def offloaded_weights(facts: ServeFacts) -> Iterator[Refusal]:
    """Weights in the host's memory, which vLLM lets devices read where they lie."""
    share = facts.engine.get("cpu_offload_gb")
    if isinstance(share, int | float) and share > 0:
        yield Refusal(
            "host-option",
            f"--cpu-offload-gb is {share}: vLLM has no view of the host's memory for an NPU, and "
            "ends while it loads weights",
            "weights on the device, in 8 bits or on more ranks",
            "leave --cpu-offload-gb out",
        )


def prefetched_weights(facts: ServeFacts) -> Iterator[Refusal]:
    """Layers whose weights come from the host one after another, beside a second model's layers.

    The hosts' offloader takes the layers of one model, and ends with an assertion at the next.
    """
    method = None if facts.speculation is None else facts.speculation.method
    by_default = facts.engine.get("offload_backend") in (None, "auto")
    groups = by_default and facts.whole("offload_group_size", 0) > 0
    if method == "draft_model" and (groups or facts.engine.get("offload_backend") == "prefetch"):
        yield Refusal(
            "host-option",
            "weights are fetched layer by layer (--offload-backend prefetch, --offload-group-size) "
            f"beside a draft model, and {host_versions.vllm_ascend()} does so for one model",
            "weights of both on the device, or no draft model",
            "leave --offload-backend and --offload-group-size out",
        )


def dynamic_batches(facts: ServeFacts) -> Iterator[Refusal]:
    """Steps by a limit of time: vllm-ascend 0.23.0's scheduler lacks an argument that vLLM gives.

    vllm-ascend 0.30.0rc2 has no such option, and refuses what it does not know
    (``about_ascend_options``).
    """
    limit = facts.ascend("SLO_limits_for_dynamic_batch")
    refuses_names = facts.rules is not None and facts.rules.ascend_options
    if limit not in (None, -1) and not refuses_names:
        yield Refusal(
            "host-option",
            f"SLO_limits_for_dynamic_batch of --additional-config is {limit}, and "
            f"{host_versions.vllm_ascend()} has no scheduler for it that starts",
            "steps of --max-num-batched-tokens",
            "leave it out",
        )


CHECKS = (elastic_experts, replayed_states, offloaded_weights, prefetched_weights, dynamic_batches)
