# SPDX-License-Identifier: Apache-2.0
"""Each text-generation class of the installed vLLM as target and as draft, tiny and random.

A class that transformers has too drafts for one of its own with other weights, and each token of
both is judged by Hugging Face. Where that does not go well, a Llama drafts for it and it drafts for
a Llama, which tells which of both roles fails. A class of vLLM alone drafts for itself: all of its
drafts are accepted where both do the same.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.host import RUNNERS
from benchmarks.matrix import refusals
from benchmarks.matrix.running import FAILS, REFUSED, WORKS
from reliability.random_models import RandomModel, write_random_model
from tests.support import engine, reference
from tests.support.reference import DraftProposal

PARTNER = "llama"
LENGTHS = (5, 40, 130, 200)
"""Of the prompts: some are longer than a window or a block."""
SAME = 0.99
"""Share of a class's drafts for itself that are accepted; others were ties."""

# What classes of vLLM alone read of a configuration, by all names that they have for a size.
SIZES: dict[int, str] = {
    256: "hidden_size n_embd d_model",
    128: "intermediate_size ffn_hidden_size ffn_dim share_expert_dim",
    64: "head_dim kv_channels moe_intermediate_size shared_expert_intermediate_size",
    4: "num_attention_heads n_head n_heads num_experts n_routed_experts num_local_experts",
    2: "num_hidden_layers n_layer n_layers num_layers num_key_value_heads num_kv_heads "
    "multi_query_group_num num_attention_groups num_experts_per_tok",
    1: "n_shared_experts num_shared_experts first_k_dense_replace n_group topk_group "
    "moe_layer_freq scale_emb scale_depth routed_scaling_factor embedding_multiplier_scale "
    "output_multiplier_scale mup_scale_factor",
    264: "vocab_size padded_vocab_size",
    1024: "max_position_embeddings seq_length max_seq_len",
}
FLAGS = {
    True: "multi_query_attention rmsnorm post_layer_norm add_qkv_bias original_rope norm_topk_prob",
    False: "tie_word_embeddings add_bias_linear apply_residual_connection_post_layernorm bias "
    "use_bias use_qkv_bias attention_bias mlp_bias use_qk_norm norm_after use_rmsnorm",
}
FIELDS: dict[str, Any] = {
    **{name: size for size, names in SIZES.items() for name in names.split()},
    **{name: flag for flag, names in FLAGS.items() for name in names.split()},
    **dict.fromkeys(("hidden_act", "activation_function", "hidden_activation"), "silu"),
    **dict.fromkeys(
        ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps"),
        1e-5,
    ),
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
    "dim_model_base": 256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
MODEL_TYPES = {"ChatGLMModel": "chatglm", "QWenLMHeadModel": "qwen", "ExaoneForCausalLM": "exaone"}

OWN_CONFIG = """from transformers import PretrainedConfig


class TinyConfig(PretrainedConfig):
    model_type = "{model_type}"
"""


@dataclass(frozen=True)
class Verdict:
    """How a class did.

    Attributes:
        architecture: its name in vLLM's registry.
        role: ``both`` (drafts for one of its own), ``target`` or ``draft`` (beside a Llama).
        result: one of ``WORKS``, ``REFUSED``, ``FAILS``.
        reason: what is wrong, or the engine's last words.
        judged: target and draft tokens that Hugging Face judged.
        accepted: share of all draft tokens that were accepted.
    """

    architecture: str
    role: str
    result: str
    reason: str = ""
    judged: int = 0
    accepted: float = 0.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command on ``parser``."""
    parser.add_argument("--only", nargs="*", metavar="CLASS", help="these classes (all)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and sizes (0)")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="verdicts, one a line; those there are not redone"
    )


def run(asked: argparse.Namespace) -> int:
    """Run the classes; returns the exit status."""
    kept = asked.keep.read_text().splitlines() if asked.keep and asked.keep.exists() else []
    found = [Verdict(**json.loads(line)) for line in kept]
    done = {one.architecture for one in found}
    for architecture, family in registered().items():
        if architecture in done or (asked.only and architecture not in asked.only):
            continue
        verdicts = list(verdicts_of(architecture, family, asked.seed, RUNNERS[asked.runner]))
        for one in verdicts:
            print(f"{one.architecture} {one.role}: {one.result} {one.reason}", file=sys.stderr)
        found += verdicts
        if asked.keep:
            with asked.keep.open("a") as file:
                file.writelines(f"{json.dumps(asdict(one))}\n" for one in verdicts)
    if asked.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
    return int(any(one.result == FAILS for one in found))


def registered() -> dict[str, str | None]:
    """Names of vLLM's registry, one for each class -> transformers' ``model_type``, if it has one.

    A name that transformers knows comes before others of the same class.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from vllm.model_executor.models.registry import _TEXT_GENERATION_MODELS

    known = {name: family for family, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()}
    judged = {name: known[name] for name in _TEXT_GENERATION_MODELS if name in known}
    classes = {_TEXT_GENERATION_MODELS[name] for name in judged}
    alone = {built: name for name, built in reversed(_TEXT_GENERATION_MODELS.items())}
    return {**judged, **{name: None for built, name in alone.items() if built not in classes}}


def verdicts_of(
    architecture: str, family: str | None, seed: int, environment: dict[str, str]
) -> Iterator[Verdict]:
    """Verdicts of one class: of both roles at once, or of each where that does not go well."""
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        if family is None:
            yield of_its_own(architecture, folder, environment)
            return
        try:
            target = write_random_model(folder / "target", family, f"{seed} target")
            draft = write_random_model(folder / "draft", family, f"{seed} draft")
        except ValueError as error:
            yield Verdict(architecture, "both", REFUSED, f"not made: {error}")
            return
        both = judged(architecture, "both", target, draft, environment)
        if both.result == WORKS or family == PARTNER:
            yield both
            return
        partner = write_random_model(folder / PARTNER, PARTNER, f"{seed} target")
        yield judged(architecture, "target", target, partner, environment)
        yield judged(architecture, "draft", partner, target, environment)


def judged(
    architecture: str, role: str, target: RandomModel, draft: RandomModel, environment: Any
) -> Verdict:
    """Run one model drafting for another, and judge each token of both."""
    scenario = engine.Scenario(
        model=target.folder,
        draft=draft.folder,
        prompts=prompts(),
        max_tokens=24,
        record_drafts=True,
        environment=dict(environment),
        engine={"trust_remote_code": False},
    )
    try:
        result = engine.run(scenario)
    except engine.EngineFailedError as error:
        return ended(architecture, role, error)
    dtype = engine.compared_dtype()
    given = [DraftProposal(*pair) for pair in zip(scenario.prompts, result.tokens, strict=True)]
    of_target = reference.check_drafts(target.folder, given, target.gaps[dtype])
    of_draft = reference.check_drafts(draft.folder, result.proposals, draft.gaps[dtype])
    problems = [
        f"{len(report.wrong)} of {report.checked} tokens of the {name}"
        for name, report in (("target", of_target), ("draft", of_draft))
        if report.wrong
    ]
    if not result.num_accepted:
        problems.append("no draft was accepted")
    return Verdict(
        architecture,
        role,
        FAILS if problems else WORKS,
        ", ".join(problems),
        of_target.checked + of_draft.checked,
        round(result.num_accepted / max(1, result.num_draft_tokens), 3),
    )


def of_its_own(architecture: str, folder: Path, environment: dict[str, str]) -> Verdict:
    """A class of vLLM alone drafts for itself, with weights that vLLM makes up."""
    family = MODEL_TYPES.get(architecture, "tiny")
    (folder / "configuration.py").write_text(OWN_CONFIG.format(model_type=family))
    config = {
        **FIELDS,
        "architectures": [architecture],
        "model_type": family,
        "auto_map": {"AutoConfig": "configuration.TinyConfig"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    scenario = engine.Scenario(
        model=str(folder),
        draft=str(folder),
        prompts=prompts(),
        max_tokens=24,
        environment=dict(environment),
        engine={"trust_remote_code": True, "load_format": "dummy"},
    )
    try:
        result = engine.run(scenario)
    except engine.EngineFailedError as error:
        return ended(architecture, "both", error)
    accepted = result.num_accepted / max(1, result.num_draft_tokens)
    problem = "" if accepted >= SAME else f"accepted {accepted:.0%} of drafts for itself"
    return Verdict(
        architecture, "both", FAILS if problem else WORKS, problem, accepted=round(accepted, 3)
    )


def ended(architecture: str, role: str, error: engine.EngineFailedError) -> Verdict:
    """The verdict of an engine that ended."""
    if (known := refusals.known_refusal(str(error))) is not None:
        return Verdict(architecture, role, REFUSED, known.reason)
    return Verdict(architecture, role, FAILS, refusals.last_words(str(error)))


def prompts() -> list[list[int]]:
    """Token ids without a pattern, the same for each class."""
    return [[(7 * place * place + 31 * n + place) % 250 for place in range(n)] for n in LENGTHS]
