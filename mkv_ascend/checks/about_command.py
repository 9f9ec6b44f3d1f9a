# SPDX-License-Identifier: Apache-2.0
"""What of a command cannot be, whatever the draft: lengths, ranks, dtypes, weights, adapters."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from mkv_ascend import host_versions
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.attention.request import PLAIN_DTYPES
from mkv_ascend.checks import about_connectors, about_dense_targets, about_lengths
from mkv_ascend.checks.block_sizes import KERNEL_BLOCK
from mkv_ascend.checks.chunked_attention import chunks
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.refusal import Refusal
from mkv_ascend.checks.unserved_family import unserved
from mkv_ascend.layout.kind import Role

__all__ = ["CHECKS"]

LORA_MULTIPLE = 64
"""vllm-ascend pads logits to it with adapters, and its kernel reads past an adapter's end."""
PACKING = "VLLM_RAY_DP_PACK_STRATEGY"
"""vLLM's variable that says how ray places the copies of --data-parallel-size."""
UNSTABLE = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
"""Model types that vLLM refuses in float16, and changes to bfloat16 where none is asked for."""
OF_TASK = re.compile(r"(For[A-Z]\w*|(Chat|LMHead|Embedding|Classification|Reward)?Model)$")
"""How names of classes end that say what a model is for."""
LEAST = {
    "tensor_parallel_size": 1,
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "data_parallel_rank": 0,
    "prefill_context_parallel_size": 1,
    "decode_context_parallel_size": 1,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 1,
    "block_size": 1,
    "num_gpu_blocks_override": 1,
    "kv_cache_memory_bytes": 0,  # As if it were left out.
}
"""Numbers, and the least that each may be."""


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def model_type(facts: ServeFacts) -> Iterator[Refusal]:
    """A config.json that does not say whose it is: transformers' AutoConfig refuses it.

    Classes beside the model (``auto_map``) and speculators' format say it in another way.
    """
    values = facts.target.values
    if any(name in values for name in ("auto_map", "speculators_config")):
        return
    if not values.get("model_type"):
        yield Refusal(
            "model-config",
            f"{facts.target.name}/config.json names no model_type",
            "the config.json of a published model",
            "correct the file, or the name of the model",
        )


def numbers(facts: ServeFacts) -> Iterator[Refusal]:
    """Numbers below the least that they may be, and a share of memory beyond 0 to 1."""
    for name, least in LEAST.items():
        value = facts.engine.get(name)
        if type(value) is int and value < least:
            yield Refusal(
                "number",
                f"{_option(name)} is {value}",
                f"a whole number from {least} on",
                f"correct it, or leave {_option(name)} out",
            )
    share = facts.engine.get("gpu_memory_utilization")
    if isinstance(share, float) and not 0 < share <= 1:
        yield Refusal(
            "number",
            f"--gpu-memory-utilization is {share}",
            "a share of the device's memory, more than 0 and at most 1",
            "write 0.9 for instance",
        )


def block_size(facts: ServeFacts) -> Iterator[Refusal]:
    """Blocks that kernels do not divide."""
    asked = facts.whole("block_size", KERNEL_BLOCK)
    if facts.target.is_compressed or not facts.takes_block_size:
        return
    # Beside states smaller blocks are enlarged, to those of kernels at least.
    least = KERNEL_BLOCK if facts.target.attends_beside_states else 0
    if asked > least and asked % KERNEL_BLOCK:
        yield Refusal(
            "block-size",
            f"--block-size is {asked}, which kernel blocks of {KERNEL_BLOCK} tokens do not divide",
            f"multiples of {KERNEL_BLOCK}",
            f"write --block-size {KERNEL_BLOCK}, or leave it out",
        )


def step_size(facts: ServeFacts) -> Iterator[Refusal]:
    """Steps that cannot hold a token of each request."""
    tokens, requests = (facts.whole(n, 0) for n in ("max_num_batched_tokens", "max_num_seqs"))
    if 0 < tokens < requests:
        yield Refusal(
            "step-size",
            f"--max-num-batched-tokens is {tokens}, and --max-num-seqs {requests}: a step could "
            "not hold a token of each request",
            f"{requests} tokens or more",
            "raise --max-num-batched-tokens, or lower --max-num-seqs",
        )


def _takes_other_nodes(facts: ServeFacts) -> bool:
    """Whether ray looks for devices of other nodes, too, which cannot be counted here.

    By default ("strict") it puts the copies of ``--data-parallel-size-local`` on the node of
    ``--data-parallel-address``, which is this one where no other is given.
    """
    if facts.engine.get("distributed_executor_backend") == "ray":
        return True
    if facts.engine.get("data_parallel_backend") != "ray":
        return False
    packed = os.environ.get(PACKING, "strict") == "strict"
    return not packed or facts.engine.get("data_parallel_address") is not None


def ranks(facts: ServeFacts) -> Iterator[Refusal]:
    """More ranks than devices."""
    count, needed = facts.device.count, facts.devices_needed
    if count is None or needed <= count or _takes_other_nodes(facts):
        return
    yield Refusal(
        "devices",
        f"the command takes {needed} devices (tensor, pipeline and context parallelism, and copies "
        f"of --data-parallel-size), and there are {count} ({facts.device.source})",
        f"{count} ranks in all",
        f"write --tensor-parallel-size {count} or less, or make more devices visible "
        "(ASCEND_RT_VISIBLE_DEVICES; mkv-ascend emulate --devices)",
    )


def heads(facts: ServeFacts) -> Iterator[Refusal]:
    """Heads that the ranks do not divide."""
    size = facts.tensor_parallel
    for model in (facts.target, facts.draft):
        count = None if model is None else model.number("num_attention_heads")
        if model is None or count is None or size < 1 or count % size == 0:
            continue
        if model is not facts.target and _is_whole_on_a_rank(facts):
            continue
        yield Refusal(
            "heads",
            f"--tensor-parallel-size is {size}, which does not divide the {count} attention heads "
            f"of the {model.role} {model.name}",
            ", ".join(str(part) for part in range(1, min(count, 64) + 1) if count % part == 0),
            "choose one of these, or another model",
        )


def shares(facts: ServeFacts) -> Iterator[Refusal]:
    """Ranks that cannot be dealt into groups which share the keys of a sequence."""
    size, share = facts.tensor_parallel, facts.whole("decode_context_parallel_size", 1)
    if facts.whole("prefill_context_parallel_size", 1) > 1 or min(size, share) < 1:
        return
    if size % share:
        yield Refusal(
            "number",
            f"--decode-context-parallel-size is {share}, which does not divide the {size} ranks of "
            "--tensor-parallel-size that it deals into groups",
            ", ".join(str(part) for part in range(1, size + 1) if size % part == 0),
            "choose one of these, or more ranks",
        )


def _is_whole_on_a_rank(facts: ServeFacts) -> bool:
    speculation = facts.speculation
    return speculation is not None and speculation.options.get("draft_tensor_parallel_size") == 1


def cache_dtype(facts: ServeFacts) -> Iterator[Refusal]:
    """Quantised caches: vllm-ascend takes them from quantised weights, on 0.23 never from this."""
    asked = str(facts.engine.get("kv_cache_dtype") or "auto")
    taken = (PLAIN_DTYPES - {"float32"}) | facts.device.extra_dtypes
    if asked == "auto" or asked in taken or facts.caches_have_the_models_dtype:
        return
    rules, formats = facts.rules, facts.target.formats
    has_8_bits = (
        facts.target.has_indexer
        or (formats is not None and formats.int8_layers)
        or (formats is not None and formats.has_int8_latents and _decodes_alone(facts))
    )
    if asked == "int8" and has_8_bits and rules is not None and rules.int8_is_an_option:
        return
    is_float8 = asked in ("fp8", "fp8_e4m3") and facts.device.generation is DeviceGeneration.A5
    if is_float8 and facts.target.number("kv_lora_rank") is not None:
        return
    yield Refusal(
        "kv-cache-dtype",
        f"--kv-cache-dtype is {asked}, which no backend of Ascend {facts.device.generation} keeps",
        f"auto, {', '.join(sorted(taken))}; quantised caches (C8) come with weights that "
        "vllm-ascend's tools quantised for them",
        "leave --kv-cache-dtype out",
    )


def _decodes_alone(facts: ServeFacts) -> bool:
    """Whether other nodes read the prompts (``is_kv_consumer`` and no producer)."""
    transfer = facts.engine.get("kv_transfer_config")
    return isinstance(transfer, dict) and transfer.get("kv_role") == "kv_consumer"


def dtype(facts: ServeFacts) -> Iterator[Refusal]:
    """A model's dtype that no operator takes.

    DeepSeek-V4's windows of latents and the matrix that turns its indexer's queries and keys are
    bfloat16 in vllm-ascend 0.23.0 (models/deepseek_v4.py, attention/dsa_v1.py), whatever the model.
    """
    taken = {"float16", "bfloat16"} | facts.device.extra_dtypes
    if facts.target.is_compressed:
        taken = {"bfloat16"}
    if facts.dtype not in taken:
        yield Refusal(
            "dtype",
            f"--dtype is {facts.dtype}"
            + (", for DeepSeek-V4's layers" if facts.target.is_compressed else ""),
            ", ".join(sorted(taken)),
            "write --dtype bfloat16, or leave it out",
        )
    elif facts.dtype == "float16" and facts.engine.get("dtype") not in (None, "auto"):
        for model in filter(None, (facts.target, facts.draft)):
            if model.model_type not in UNSTABLE:
                continue
            yield Refusal(
                "dtype",
                f"--dtype is float16, in which vLLM takes no model of type {model.model_type}: "
                f"numbers of the {model.role} {model.name} grow too large",
                ", ".join(sorted(taken - {"float16"})),
                "write --dtype bfloat16",
            )


def quantization(facts: ServeFacts) -> Iterator[Refusal]:
    """Weights whose quantisation vllm-ascend does not know, of either model."""
    if facts.rules is None:
        return
    taken = facts.rules.quantizations
    options = {} if facts.speculation is None else facts.speculation.options
    asked = {
        "target": facts.engine.get("quantization"),
        "draft": options.get("quantization"),
    }
    models = [facts.target]
    # A target's own MTP layers are of the same weights.
    if facts.draft is not None and facts.draft.name != facts.target.name:
        models.append(facts.draft)
    for model in models:
        method = asked[model.role.value] or model.quantization
        if method is None or method in taken:
            continue
        yield Refusal(
            "quantization",
            f"the weights of the {model.role} {model.name} are quantised by {method}, which "
            f"mkv_ascend does not serve on {host_versions.vllm_ascend()}",
            f"plain weights, or {', '.join(taken)}",
            "choose a model with such weights",
        )


def family(facts: ServeFacts) -> Iterator[Refusal]:
    """Families that the host has no class for, or serves wrongly."""
    if facts.rules is None:
        return
    for model in filter(None, (facts.target, facts.draft)):
        found = unserved(
            facts.rules.unserved_families,
            model.architectures,
            facts.dtype,
            drafts=model is facts.draft,
        )
        if found is not None:
            yield Refusal(
                "family", found.reason(model.name, facts.dtype), found.possible, found.change
            )
            return  # A target's own drafting layers are of the same family.
        if (name := _class_that_vllm_lacks(facts, model)) is not None:
            yield Refusal(
                "family",
                f"{model.name} is of the class {name}, which {host_versions.vllm()} does not have",
                "models of a class that it has, or that transformers computes for it",
                "choose another model, or a vLLM that has the class",
            )


def _class_that_vllm_lacks(facts: ServeFacts, model: ModelFacts) -> str | None:
    """The class of a model that the installed vLLM cannot run; None where it can, or may."""
    names, known = model.architectures, host_versions.model_classes()
    method = None if facts.speculation is None else facts.speculation.method
    if facts.rules is None or not host_versions.runs_vllm(facts.rules.vllm) or not known:
        return None
    if model.role is Role.DRAFT and method != "draft_model":
        return None  # ``about_draft_class`` says which class the method makes.
    if not names or model.values.get("auto_map") or facts.engine.get("model_impl") is not None:
        return None
    # vLLM takes a class of generation for one of another task: FooForCausalLM for FooModel.
    stems = {OF_TASK.sub("", name) for name in names}
    if any(name in names or OF_TASK.sub("", name) in stems for name in known):
        return None
    return None if host_versions.transformers_computes(names[0]) else names[0]


def adapters(facts: ServeFacts) -> Iterator[Refusal]:
    """Adapters over vocabularies that vllm-ascend's kernel reads past, and heads' own."""
    if not facts.engine.get("enable_lora"):
        if facts.engine.get("lora_modules"):
            yield Refusal(
                "lora",
                "--lora-modules is given without --enable-lora: the adapters would not be loaded",
                "both, or neither",
                "add --enable-lora",
            )
        return
    vocabulary = facts.target.number("vocab_size")
    if vocabulary is not None and vocabulary % LORA_MULTIPLE:
        yield Refusal(
            "lora-vocabulary",
            f"--enable-lora with a vocabulary of {vocabulary} tokens: "
            f"{host_versions.vllm_ascend()} pads logits to a multiple of {LORA_MULTIPLE}, and "
            "reads past the end of each adapter",
            f"vocabularies that are multiples of {LORA_MULTIPLE}",
            "merge the adapter into the weights, and leave --enable-lora out",
        )


CHECKS = (
    *(
        model_type,
        numbers,
        *about_lengths.CHECKS,
        block_size,
        step_size,
        ranks,
        heads,
        cache_dtype,
        dtype,
        quantization,
        family,
        chunks,
    ),
    *(adapters, shares, *about_dense_targets.CHECKS, *about_connectors.CHECKS),
)
