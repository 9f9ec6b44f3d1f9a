# SPDX-License-Identifier: Apache-2.0
"""Families of models that a host has no right class for, layers that nothing serves, and files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mkv_ascend import host_versions
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.model import DELTA_ATTENTION, ROLLED_BACK, ModelFacts, broken_weights
from mkv_ascend.rules.refusal import Refusal, Rule

NEVER_ROLLED_BACK = frozenset({"Mamba1", "linear attention"})
"""Those whose state cannot be, on any host; of Kimi delta attention see ``HostRules``."""
WITHOUT_CHUNKS = "mimo_v2"
"""Model types that begin so name a size of chunks and have none; vLLM takes it out."""
HEADS = "num_attention_heads"
SIZES = ("hidden_size", "num_hidden_layers", "vocab_size", HEADS, "num_key_value_heads")
"""What a model has at least one of, by the names that all of transformers' configurations know.
Other numbers may be 0: experts, drafting layers, groups."""
READ_BY_TENSOR = frozenset({"auto", "hf", "safetensors"})
"""Values of ``--load-format`` with which vLLM reads safetensors files."""
MOST_NAMED = 5
LORA_MULTIPLE = 64
"""vllm-ascend pads logits to it with adapters, and its kernel reads past an adapter's end."""


def sizes(facts: Facts) -> Iterator[Refusal]:
    """Sizes below 1 that a configuration states.

    vLLM divides by some of them while it builds the models. Of others it builds empty matrices,
    which no operator takes and no weights fit.
    """
    for model in facts.models:
        stated = ((name, model.number(name)) for name in SIZES)
        wrong = [
            f"{name} {size}"
            for name, size in stated
            if size is not None and size < 1 and not (name == HEADS and model.attention_free)
        ]
        if wrong:
            yield Refusal(
                "model-size",
                f"the configuration of the {model.role} {model.name} has {', '.join(wrong)}",
                "1 or more of each",
                "correct its config.json, or what --hf-overrides says",
            )


def weights(facts: Facts) -> Iterator[Refusal]:
    """Files of weights that are cut short, no safetensors files or not there.

    What tensors whole files lack, the worker says when it has built the class (``weights.py`` of
    the adapters), behind the loading of the target.
    """
    formats = (facts.load_format, facts.draft_load_format)
    for model, asked in zip(facts.models, formats, strict=False):
        problems = list(broken_weights(Path(model.name))) if asked in READ_BY_TENSOR else []
        if problems:
            yield Refusal(
                "weights",
                f"weights of the {model.role} {model.name}: {'; '.join(problems[:MOST_NAMED])}",
                "whole files, all that their index names",
                f"download {model.name} again",
            )


def family(facts: Facts) -> Iterator[Refusal]:
    """Families that the host has no class for, or serves wrongly."""
    for model in facts.models:
        drafts = model.role is Role.DRAFT and facts.method == "draft_model"
        for found in facts.host.unserved_families:
            if found.is_of(model.architectures, facts.dtype, drafts=drafts):
                why = f"{model.name} is {found.why.format(dtype=facts.dtype)}"
                yield Refusal("family", why, found.possible, found.change)
                return


def is_taken_back(facts: Facts, model: ModelFacts) -> bool:
    """Whether ``model`` has layers of KDA, in the form that this host loads and takes back.

    vLLM 0.30.0 asserts an output gate of full rank, as Kimi-K3's (``models/kimi_k3``).
    """
    sizes = model.text.get("linear_attn_config")
    kept = model.recurrent == DELTA_ATTENTION and facts.host.delta_attention_drafts
    return kept and isinstance(sizes, dict) and bool(sizes.get("use_full_rank_gate"))


def states_of_target(facts: Facts) -> Iterator[Refusal]:
    """A target whose states cannot be taken back where tokens are rejected."""
    target, vllm = facts.target, host_versions.vllm()
    kind, name = target.recurrent, target.name
    if facts.speculation is None or kind is None:
        return
    if is_taken_back(facts, target):
        return
    change = "leave --speculative-config out for this model"
    fields = facts.host.states_beside_drafts
    if kind == DELTA_ATTENTION and facts.host.delta_attention_drafts:
        reason = (
            f"{name} has layers of {kind} with an output gate of two factors, and {vllm} loads "
            "gates of full rank alone (Kimi-K3's), with drafts or without"
        )
        change = "serve it with vllm-ascend 0.23.0, without --speculative-config"
    elif kind in NEVER_ROLLED_BACK or kind == DELTA_ATTENTION:
        reason = (
            f"{name} has layers of {kind}, whose state mkv_ascend cannot take back to the last "
            f"accepted token on {vllm}"
        )
    elif target.attention_free:
        reason = (
            f"{name} has no attention layer: {vllm} counts accepted tokens of no such model, so "
            "that accepted drafts would be left out of its states"
        )
    elif fields and fields.isdisjoint(target.text):
        reason = (
            f"{name} keeps recurrent states other than gated delta nets, KDA, Mamba2 and short "
            f"convolutions, which no test has taken back on {host_versions.vllm_ascend()}"
        )
    else:
        return
    yield Refusal(
        "target-states",
        f"drafts are asked for, and {reason}",
        f"speculation over attention layers, and beside them {', '.join(sorted(ROLLED_BACK))}",
        change,
    )


def one_kind_of_cache(facts: Facts) -> Iterator[Refusal]:
    """``--disable-hybrid-kv-cache-manager`` beside kinds of layers that vLLM cannot make one of.

    vLLM lets layers with windows keep all keys then. States have no such other form, and neither
    have DeepSeek-V4's caches; vLLM says so when models are loaded.
    """
    models = facts.models if facts.method == "draft_model" else (facts.target,)
    for model in models if facts.one_kind_of_cache else ():
        if model.is_compressed:
            kind = "caches of DeepSeek-V4's kinds"
        elif model.attends_beside_states:
            kind = f"states ({model.recurrent}) beside keys"
        else:
            continue
        yield Refusal(
            "layout",
            f"--disable-hybrid-kv-cache-manager is given, and the {model.role} {model.name} keeps "
            f"{kind}: vLLM cannot make one kind of cache of them",
            "the option with models whose layers attend, to all tokens or to windows",
            "leave --disable-hybrid-kv-cache-manager out",
        )


CHECKS = (
    sizes,
    # vLLM looks the mode up behind its configuration, when workers have started.
    Rule(
        "tokenizer",
        lambda facts: (
            facts.tokenizer_modes
            and facts.tokenizer_mode not in facts.tokenizer_modes
            and {"modes": ", ".join(sorted(facts.tokenizer_modes))}
        ),
        "--tokenizer-mode is {facts.tokenizer_mode}, for which {vllm} has no tokenizer",
        "{modes}",
        "choose one of these, or leave --tokenizer-mode out",
    ),
    weights,
    family,
    # Layers that attend in chunks (Llama 4): vLLM's metadata builder for chunks makes metadata
    # anew, without what vllm-ascend's reads.
    Rule(
        "chunks",
        lambda facts: [
            {"model": model, "size": size}
            for model in facts.models
            if (size := model.number("attention_chunk_size"))
            and not model.model_type.startswith(WITHOUT_CHUNKS)
        ],
        f"layers of {{model.name}} attend in chunks of {{size}} tokens ({Kind.CHUNKED_LOCAL}), "
        "which no backend of {ascend} serves",
        "attention to all tokens, or to a sliding window",
        "choose a model without attention_chunk_size in its configuration",
    ),
    Rule(
        "lora-vocabulary",
        lambda facts: (
            facts.lora
            and (words := facts.target.number("vocab_size") or 0) % LORA_MULTIPLE
            and {"words": words}
        ),
        "--enable-lora with a vocabulary of {words} tokens: {ascend} pads logits to a multiple of "
        f"{LORA_MULTIPLE}, and reads past the end of each adapter",
        f"vocabularies that are multiples of {LORA_MULTIPLE}",
        "merge the adapter into the weights, and leave --enable-lora out",
    ),
    # vLLM 0.30.0 sets the block size of its configuration to the least of all groups, 2 to 8 tokens
    # here. vllm-ascend 0.30.0rc2 then asks the layers again, by that size, of which it has no
    # caches (KeyError in ``DSV4_BLOCK_SIZES``). A worker's own process has its own configuration.
    Rule(
        "executor",
        lambda facts: (
            facts.target.is_compressed
            and facts.executor == "uni"
            and not facts.host.compressed_in_one_process
        ),
        "{facts.target.name} on one rank, whose worker vLLM runs in the engine core's own process: "
        "{ascend} asks the layers of {facts.target.model_type} for caches there by a block size "
        "that it has none of",
        "a worker in a process of its own, or several ranks",
        "add --distributed-executor-backend mp",
    ),
    states_of_target,
    Rule(
        "kept-states",
        lambda facts: (
            facts.states_of_all_blocks
            and facts.target.recurrent is not None
            and facts.host.refuses_states_of_all_blocks
        ),
        "--mamba-cache-mode all was asked for: states at the end of every block. On Ascend states "
        "are kept at the ends of scheduled chunks, and {ascend} gives that mode blocks as long as "
        "the longest context, so that no prefix would be found again",
        "states at the ends of chunks",
        "use --mamba-cache-mode align",
    ),
    one_kind_of_cache,
)
