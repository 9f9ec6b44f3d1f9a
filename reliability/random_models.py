# SPDX-License-Identifier: Apache-2.0
"""Tiny models of any class that vLLM and transformers have, with random weights that matter.

Each matrix keeps the size of what it is given, those of queries and keys enlarge it, so that a
query attends to few keys. The output matrix follows the last token to a degree: two models that
share nothing but this agree on some of their tokens, and drafts are accepted.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reliability.random_configs import MAX_POSITIONS, tiny_config
from tests.support import reference
from tests.support.tiny_models import further_models
from tests.support.tiny_models.tokenizer import NUM_BYTES, VOCABULARY_SIZE, build_tokenizer

if TYPE_CHECKING:
    import torch

PROBED = 48
"""Tokens of a context that power and rounding are measured with."""
LEAST_POWER = 0.1
"""Share of single tokens whose removal changes the argmax, below which a model judges nothing."""
ENOUGH_POWER = 0.15
"""With which no stronger weights are tried."""
MOST_WEIGHTS = 2**26
"""Of a model. Classes of pictures and text have sizes of their own, which stay as published."""
STRENGTHS = (
    (0.5, 2.0, ENOUGH_POWER),
    (0.3, 2.0, ENOUGH_POWER),
    (0.2, 3.0, LEAST_POWER),
    # Gemma enlarges what it embeds, and gives it to the output matrix.
    (0.05, 3.0, LEAST_POWER),
    (0.02, 3.0, LEAST_POWER),
)
"""What is tried in turn: ``embedded`` and ``attended`` of ``fill``, and the power that ends it."""
LEAST_GAP, ROUNDINGS = 1e-3, 10
"""Lead of a logit under which it decides nothing: this, or so many times what weights change it by
that differ by ``ROUNDED``, some roundings of float32."""
ROUNDED = 5e-7
BFLOAT16_ROUNDINGS = 4

_ENLARGED = re.compile(
    r"(^|[._])(q|k|q_b|qkv|query|key|query_key_value|Wqkv|c_attn|qkv_proj|q_proj|k_proj|q_b_proj"
    r"|kv_b_proj|q_norm|k_norm|q_layernorm|k_layernorm|query_layernorm|key_layernorm)([._]|$)"
)
_ADDS_ATTENTION = re.compile(r"(attn|attention|mixer|conv)\w*\.(o_proj|out_proj|dense|c_proj)")
_GAIN = 1.7
UNJUDGED_FAMILIES = {
    "glm_moe_dsa": "transformers 5.5.4 turns rotary features of its attention in halves; 5.14.1,"
    " vLLM and the published weights have them in pairs",
    "minimax": "transformers saves tables of its decay, which no published checkpoint has",
}
"""Families of which no installed reference computes what the published models are, and why."""
_OWN_NAMES = ("olmo_hybrid",)
"""Families whose weights vLLM reads by the names of transformers' class alone.

Of Olmo-Hybrid transformers 5.5.4 would call two norms of attention as those of other layers.
"""
_ROUTES = ("e_score_correction_bias", "expert_bias")
"""Buffers that choose experts, which classes make of zeros."""


@dataclass(frozen=True)
class RandomModel:
    """A checkpoint, and how well it judges.

    Attributes:
        folder: of the checkpoint.
        family: transformers' ``model_type``.
        power: share of single tokens whose removal changes the argmax.
        gaps: dtype of an engine -> lead of a logit under which it decides nothing.
    """

    folder: str
    family: str
    power: float
    gaps: dict[str, float]


def families() -> list[str]:
    """``model_type`` of each text class that the installed vLLM and transformers both have."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    from vllm.model_executor.models.registry import _TEXT_GENERATION_MODELS

    return [
        name
        for name, classes in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
        if {classes} & _TEXT_GENERATION_MODELS.keys()
    ]


def write_random_model(folder: Path, family: str, seed: str) -> RandomModel:
    """Write the model of ``family`` that ``seed`` draws into ``folder``.

    Raises:
        ValueError: its class has no tiny form here, which may show itself in any way.
    """
    try:
        return _write_random_model(folder, family, random.Random(f"{seed} {family}"))
    except Exception as error:
        raise ValueError(f"{family} has no tiny form here: {error!r}") from error


def _write_random_model(folder: Path, family: str, chance: random.Random) -> RandomModel:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging
    from vllm.transformers_utils.config import get_config

    if reason := UNJUDGED_FAMILIES.get(family):
        raise ValueError(reason)
    logging.disable_progress_bar()
    # The reference has these classes. Drawn without them a model would depend on those before it.
    further_models.register()
    seed, config = chance.randrange(2**31), tiny_config(family, chance)
    make = functools.partial(
        AutoModelForCausalLM.from_config, attn_implementation="eager", dtype=torch.float32
    )
    with torch.device("meta"):
        size = sum(weight.numel() for weight in make(config).parameters())
    if size > MOST_WEIGHTS:
        raise ValueError(f"{size} weights")
    torch.manual_seed(seed)
    model = make(config).eval()
    share = chance.choice((0.3, 0.45, 0.6))
    contexts = [_context(chance) for _ in range(2)]
    made = [weight.detach().clone() for weight in model.parameters()]
    for embedded, attended, enough in STRENGTHS:
        fill(model, made, embedded, attended)
        follow_tokens(model, share, chance)
        power = removal_power(model, contexts)
        if power >= enough:
            break
    gaps = measured_gaps(model, contexts)
    model.config.architectures = [type(model).__name__]
    model.save_pretrained(folder, save_original_format=family not in _OWN_NAMES)
    build_tokenizer(MAX_POSITIONS).save_pretrained(folder)
    # What was written is what the reference reads. vLLM reads some families in forms of its own.
    reference.load_model(folder)
    with _known_configurations():
        get_config(str(folder), trust_remote_code=False)
    return RandomModel(str(folder), family, power, gaps)


@contextlib.contextmanager
def _known_configurations() -> Iterator[None]:
    """Take back the classes that vLLM puts in place of transformers': of them others are drawn."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    mapping: Any = CONFIG_MAPPING
    known = dict(mapping._extra_content)
    try:
        yield
    finally:
        mapping._extra_content = known


def fill(model: Any, made: Iterable[torch.Tensor], embedded: float, attended: float) -> None:
    """Draw all weights anew: none is zero or one, as some are where a class makes them.

    Args:
        model: of transformers.
        made: its weights as its class makes them.
        embedded: standard deviation of embeddings, which else outweigh what attention adds.
        attended: how much more attention adds than what it is given.
    """
    import torch

    with torch.no_grad():
        for (name, weight), before in zip(model.named_parameters(), made, strict=True):
            gain = _GAIN if _ENLARGED.search(name) else 1.0
            gain = attended if _ADDS_ATTENTION.search(name) else gain
            if weight.dim() == 1:
                spread = 0.2 * torch.randn_like(weight)
                weight.copy_(spread if "bias" in name else gain * (before + spread))
            elif "embed" in name or name.endswith("wte.weight") or "word_embeddings" in name:
                torch.nn.init.normal_(weight, 0, embedded)
            else:
                torch.nn.init.normal_(weight, 0, gain * weight[0].numel() ** -0.5)
            weight.copy_(weight.bfloat16())
        for name, buffer in model.named_buffers():
            if name.endswith(_ROUTES):
                buffer.copy_((0.2 * torch.randn_like(buffer)).bfloat16())


def follow_tokens(model: Any, share: float, chance: random.Random) -> None:
    """Let the output matrix name, at ``share`` of all places, a token given by the last one.

    Which one is given to which is the same in all models, so that they agree there.
    """
    import torch

    output, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if output is None or output.weight is embeddings.weight:
        return
    following = torch.tensor(successors())
    tokens = torch.tensor([_context(chance) for _ in range(2)])
    pull = torch.zeros_like(output.weight)
    pull[following] = embeddings.weight.detach()[:, : pull.shape[1]]
    states: list[torch.Tensor] = []
    hook = output.register_forward_hook(lambda _, given, made: states.append(given[0]))
    with torch.inference_mode():
        model(input_ids=tokens, use_cache=False)
        hook.remove()
        plain, pulled = states[0] @ output.weight.T, states[0] @ pull.T
        followed = {}
        for strength in (0.05 * 1.2**step for step in range(40)):
            chosen = (plain + strength * pulled).argmax(-1)
            followed[strength] = min(share, float((chosen == following[tokens]).float().mean()))
        # The least of those that come nearest to it.
        strength = max(followed, key=lambda one: followed[one])
    with torch.no_grad():
        # Logits keep the size that a gap is measured in.
        output.weight += strength * pull
        output.weight /= (plain + strength * pulled).std()
        output.weight.copy_(output.weight.bfloat16())


def successors() -> list[int]:
    """For each token the one that follows it most often: one round through all of them."""
    order = list(range(VOCABULARY_SIZE))
    random.Random("successors").shuffle(order)
    following = dict(zip(order, [*order[1:], order[0]], strict=True))
    return [following[token] for token in range(VOCABULARY_SIZE)]


def removal_power(model: Any, contexts: Iterable[Sequence[int]]) -> float:
    """Share of single tokens that no later one attends to, for which the argmax is another."""
    import torch

    changed, total = 0, 0
    for context in contexts:
        removed = range(0, len(context) - 1, 2)
        rows = len(removed)
        tokens = torch.tensor([list(context)]).expand(rows + 1, -1)
        mask = torch.ones_like(tokens)
        mask[range(rows), removed] = 0
        with torch.inference_mode():
            made = model(input_ids=tokens, attention_mask=mask, use_cache=False).logits[:, -1]
        choices = made.argmax(-1)
        changed += int((choices[:-1] != choices[-1]).sum())
        total += rows
    return changed / total


def measured_gaps(model: Any, contexts: Sequence[Sequence[int]]) -> dict[str, float]:
    """Leads of a logit that decide nothing: several times what rounding changes of any.

    For float32 weights are changed by some roundings of it; in bfloat16 matrices are multiplied.
    """
    import torch

    tokens = torch.tensor([list(one) for one in contexts])
    kept = [weight.detach().clone() for weight in model.parameters()]
    with torch.no_grad():
        made = model(input_ids=tokens, use_cache=False).logits
        for weight in model.parameters():
            weight *= 1 + ROUNDED * torch.randn_like(weight)
        changed = model(input_ids=tokens, use_cache=False).logits
        for weight, before in zip(model.parameters(), kept, strict=True):
            weight.copy_(before)
        gaps = {"float32": max(LEAST_GAP, ROUNDINGS * float((made - changed).abs().max()))}
        with contextlib.suppress(RuntimeError), torch.autocast("cpu", dtype=torch.bfloat16):
            # Experts of some families are multiplied by operators that it does not know.
            coarse = model(input_ids=tokens, use_cache=False).logits.float()
            gaps["bfloat16"] = BFLOAT16_ROUNDINGS * float((made - coarse).abs().max())
    return gaps


def _context(chance: random.Random) -> list[int]:
    return [chance.randrange(NUM_BYTES) for _ in range(PROBED)]
