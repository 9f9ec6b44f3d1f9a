# SPDX-License-Identifier: Apache-2.0
"""Drafting heads on a target's hidden states, in torch and transformers: eagle, eagle3 and MTP.

They are trained with this code and the reference judges engines with it; vLLM loads the same
weights into modules of its own. What a head is follows the checkpoints that vLLM 0.23.0 loads
(``llama_eagle``, ``llama_eagle3``, ``deepseek_mtp``, ``qwen3_next_mtp``), with one detail of
vllm-ascend 0.23.0: an MTP layer's next step takes the hidden state after the final norm, where vLLM
hands on the one before.

All heads are asked alike. Position ``i`` gets the token at ``i + 1`` and what is known after the
token at ``i``; it answers what follows the token at ``i + 1``:

    known = head.known(target_hidden_states)      # for the positions that the target has seen
    states, known_next = head(tokens, known)      # head.logits(states): the token at i + 2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy, embedding
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaDecoderLayer,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)

from tests.support.tiny_models.sensitivity import masked

UNROLLED_STEPS = 2
"""Steps of a proposal that are trained on: the second goes on from the head's own states."""

HIDDEN_SHARE = 0.3
"""Share of positions whose hidden state is hidden in training, so that a head needs its own keys.

A hidden state sums up all tokens before it: with all of them a head hardly attends to others.
"""

PROPOSED_TOKENS = 3
"""Of the proposals that missing keys are looked for in."""


class Head(nn.Module):
    """What the heads share: the target's embedding and output matrix, positions and the mask.

    Tensors: token ids int64 ``[rows, length]``; hidden states float32 ``[rows, length, width]``.
    """

    def __init__(self, target: Any) -> None:
        super().__init__()
        # In a tuple, so that the target's weights are no parameters of the head.
        self._target = (target,)

    @property
    def target(self) -> Any:
        """The target's transformers model."""
        return self._target[0]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The target's embeddings of ``tokens``.

        Rows of the matrix itself: where the target scales them (Gemma), it does so afterwards, and
        vLLM hands a head the matrix alone.
        """
        return embedding(tokens, self.target.get_input_embeddings().weight)

    def known(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the head takes from the target's ``hidden_states``: embedding first, last normed."""
        return hidden_states[-1]

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Logits ``[..., vocabulary]`` from the head's ``states``."""
        scores: torch.Tensor = self.target.get_output_embeddings()(states)
        return scores

    def forward(
        self, tokens: torch.Tensor, known: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """States for ``logits``, and what is known after each position for the next step."""
        raise NotImplementedError

    def weights(self) -> dict[str, torch.Tensor]:
        """The checkpoint's tensors, by the names that vLLM loads; they share the head's memory."""
        raise NotImplementedError

    def load_weights(self, checkpoint: Mapping[str, torch.Tensor]) -> None:
        """Take over the tensors that ``weights`` names; KeyError if one is missing."""
        for name, value in self.weights().items():
            value.copy_(checkpoint[name])


def causal_mask(length: int) -> torch.Tensor:
    """What is added to the scores of ``length`` queries: float32 ``[1, 1, length, length]``."""
    return torch.full((1, 1, length, length), float("-inf")).triu(1)


def attend(layer: nn.Module, rope: nn.Module, states: torch.Tensor) -> Any:
    """``layer`` (decoder layer or attention) over ``states`` at the positions from 0 on."""
    positions = torch.arange(states.shape[1])[None]
    return layer(
        hidden_states=states,
        attention_mask=causal_mask(states.shape[1]),
        position_embeddings=rope(states, positions),
    )


class EagleHead(Head):
    """EAGLE: one Llama layer over a mix of token and hidden state, before the target's lm_head."""

    def __init__(self, target: Any, config: LlamaConfig) -> None:
        super().__init__(target)
        width = config.hidden_size
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layer = LlamaDecoderLayer(config, layer_idx=0)
        # The checkpoints have none in their first layer.
        self.layer.input_layernorm = nn.Identity()
        self.rope = LlamaRotaryEmbedding(config)

    def forward(
        self, tokens: torch.Tensor, known: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mixed = self.fc(torch.cat([self.embed(tokens), known], dim=-1))
        states = attend(self.layer, self.rope, mixed)
        return states, states

    def weights(self) -> dict[str, torch.Tensor]:
        layer = {f"layers.0.{name}": value for name, value in self.layer.state_dict().items()}
        return {"fc.weight": self.fc.weight.detach(), **layer}


class Eagle3Head(Head):
    """EAGLE-3: a layer of double width over token and mixed hidden states of several depths.

    ``config.eagle_aux_hidden_state_layer_ids`` are the depths: ``i`` is what enters layer ``i``.
    """

    def __init__(self, target: Any, config: LlamaConfig) -> None:
        super().__init__(target)
        width = config.hidden_size
        self.depths = tuple(config.eagle_aux_hidden_state_layer_ids)
        target_width = target.config.hidden_size
        self.fc = nn.Linear(target_width * len(self.depths), width, bias=False)
        self.layer = LlamaDecoderLayer(config, layer_idx=0)
        self.layer.hidden_norm = LlamaRMSNorm(width, eps=config.rms_norm_eps)
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(self.layer.self_attn, name).out_features
            setattr(self.layer.self_attn, name, nn.Linear(2 * width, rows, bias=False))
        self.norm = LlamaRMSNorm(width, eps=config.rms_norm_eps)
        self.lm_head = nn.Linear(width, config.vocab_size, bias=False)
        self.rope = LlamaRotaryEmbedding(config)

    def known(self, hidden_states: Sequence[torch.Tensor]) -> torch.Tensor:
        mixed: torch.Tensor = self.fc(torch.cat([hidden_states[i] for i in self.depths], dim=-1))
        return mixed

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.lm_head(states)
        return scores

    def forward(
        self, tokens: torch.Tensor, known: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        layer = self.layer
        normed = [layer.input_layernorm(self.embed(tokens)), layer.hidden_norm(known)]
        attended, _ = attend(layer.self_attn, self.rope, torch.cat(normed, dim=-1))
        states = known + attended
        states = states + layer.mlp(layer.post_attention_layernorm(states))
        return self.norm(states), states

    def weights(self) -> dict[str, torch.Tensor]:
        layer = {f"midlayer.{name}": value for name, value in self.layer.state_dict().items()}
        own = {f"{name}.weight": getattr(self, name).weight.detach() for name in OF_EAGLE3}
        return {**own, **layer}


OF_EAGLE3 = ("fc", "norm", "lm_head")


class MtpHead(Head):
    """One more layer of the target's kind over token and hidden state, as DeepSeek's.

    Families differ in the names of their checkpoints, in the layer, and in what a next step takes.
    """

    PREFIX = "model.layers.{index}."
    """What all names in the checkpoint begin with."""
    NAMES: Mapping[str, str] = {
        "token_norm": "enorm",
        "known_norm": "hnorm",
        "mix": "eh_proj",
        "norm": "shared_head.norm",
    }
    """Module here -> in checkpoints."""
    LAYER = ""
    """What names of the layer begin with there."""
    copies_matrices = True
    """Checkpoints have the target's embedding and output matrix once more."""
    hides_first_token = True
    """At position 0 vLLM hides the token."""
    takes_known_first = False
    hands_on_normed = True
    """A next step takes states behind the last norm."""

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        width = self.config.hidden_size
        self.index = self.config.num_hidden_layers
        self.token_norm, self.known_norm = self.make_norm(), self.make_norm()
        self.mix = nn.Linear(2 * width, width, bias=False)
        self.layer = self.make_layer()
        self.norm = self.make_norm()
        self.rope = self.make_rope()

    @property
    def config(self) -> Any:
        """Sizes of the target's language part."""
        return self.target.config.get_text_config()

    @property
    def inner(self) -> Any:
        """The target's layers with their last norm; one deeper where it sees pictures."""
        return getattr(self.target.model, "language_model", self.target.model)

    def make_norm(self) -> nn.Module:
        """A norm of the target's kind."""
        norm: nn.Module = type(self.inner.norm)(
            self.config.hidden_size, eps=self.config.rms_norm_eps
        )
        return norm

    def make_layer(self) -> nn.Module:
        """The layer, of the kind of the target's last one."""
        return self.layer_like(self.index)

    def layer_like(self, index: int) -> nn.Module:
        """A layer as the target's would be at this place."""
        layer: nn.Module = type(self.inner.layers[-1])(self.config, index)
        return layer

    def make_rope(self) -> Any:
        """What gives the layer its positions."""
        return type(self.inner.rotary_emb)(self.config)

    def through(self, states: torch.Tensor) -> torch.Tensor:
        """What the layer makes of token and hidden state."""
        attended: torch.Tensor = attend(self.layer, self.rope, states)
        return attended

    def forward(
        self, tokens: torch.Tensor, known: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        embedded = self.embed(tokens)
        if self.hides_first_token:
            embedded = embedded * (torch.arange(tokens.shape[1]) > 0)[:, None]
        parts = [self.token_norm(embedded), self.known_norm(known)]
        if self.takes_known_first:
            parts.reverse()
        states = self.through(self.mix(torch.cat(parts, dim=-1)))
        normed = self.norm(states)
        return normed, normed if self.hands_on_normed else states

    def weights(self) -> dict[str, torch.Tensor]:
        """Of the MTP layer alone; a checkpoint has them beside the target's."""
        named: dict[str, Any] = {
            f"{there}.weight": self.get_submodule(here).weight for here, there in self.NAMES.items()
        }
        if self.copies_matrices:
            named["shared_head.head.weight"] = self.target.lm_head.weight
            named["embed_tokens.weight"] = self.target.get_input_embeddings().weight
        named |= {f"{self.LAYER}{name}": value for name, value in self.layer_weights().items()}
        prefix = self.PREFIX.format(index=self.index)
        return {prefix + name: value.detach() for name, value in named.items()}

    def layer_weights(self) -> dict[str, torch.Tensor]:
        """The layer's own, by the names of checkpoints."""
        return separate_experts(self.layer.state_dict())


MTP_HEADS: dict[str, type[Head]] = {"deepseek_v3": MtpHead}
"""Model type of a checkpoint with an MTP layer -> the head; ``further_models`` adds to it."""


def separate_experts(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """``state`` with a view of each expert's matrices, as in checkpoints, for stacks of them."""
    separate: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        stem, _, kind = name.rpartition(".")
        if not stem.endswith("mlp.experts"):
            separate[name] = value
            continue
        for expert, matrix in enumerate(value):
            parts = {"down_proj": matrix}
            if kind == "gate_up_proj":
                parts = dict(zip(("gate_proj", "up_proj"), matrix.chunk(2), strict=True))
            for part, rows in parts.items():
                separate[f"{stem}.{expert}.{part}.weight"] = rows
    return separate


def proposal_loss(head: Head, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy (nats) of the target's own predictions under the head's.

    ``tokens``: int64 ``[rows, length]``. In the second step what is known of a position is what the
    head said one position earlier, as when it drafts.
    """
    with torch.no_grad():
        output = head.target(input_ids=tokens, use_cache=False, output_hidden_states=True)
    wanted = output.logits[:, 1:].softmax(-1).flatten(0, 1)
    known = head.known([states[:, :-1] for states in output.hidden_states])
    losses = []
    for _ in range(UNROLLED_STEPS):
        kept = torch.rand(known.shape[:2]) >= HIDDEN_SHARE
        states, following = head(tokens[:, 1:], known * kept[..., None])
        losses.append(cross_entropy(head.logits(states).flatten(0, 1), wanted))
        known = torch.cat([known[:, :1], following[:, :-1]], dim=1)
    return torch.stack(losses).mean()


def head_removal_share(head: Head, contexts: Sequence[Sequence[int]]) -> float:
    """Share of removals of one of the head's own keys that change one of its proposed tokens.

    As ``sensitivity`` does for language models; but what is compared are ``PROPOSED_TOKENS`` tokens
    of a proposal. The shares are lower: a hidden state of the target sums up all tokens before it.
    """
    changed = total = 0
    for started in contexts:
        tokens = torch.tensor(started)
        with torch.inference_mode():
            output = head.target(input_ids=tokens[None], use_cache=False, output_hidden_states=True)
            known = head.known(output.hidden_states)
            following = torch.cat([tokens[1:], output.logits[0, -1].argmax(-1, keepdim=True)])
        # The last row is the undisturbed proposal. The key at the last position is not removed:
        # its query would be left without any where it is the only one.
        proposals = proposals_without_keys(head, following, known)
        changed += int((proposals[:-1] != proposals[-1]).any(dim=1).sum())
        total += len(proposals) - 1
    return changed / total


def proposals_without_keys(head: Head, tokens: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Proposals int64 ``[positions, PROPOSED_TOKENS]``; in row ``i`` the key at ``i`` is missing.

    ``tokens``: int64 ``[positions]``, ``known``: ``[1, positions, width]`` as a head takes them.
    The key is hidden from the queries that propose; in the last row none is.
    """
    positions = len(tokens)
    rows = tokens.expand(positions, -1)
    known = known.expand(positions, -1, -1)
    chosen = []
    for _ in range(PROPOSED_TOKENS):
        length = rows.shape[1]
        removal = torch.zeros(positions, 1, length, length)
        for position in range(positions - 1):
            removal[position, 0, positions - 1 :, position] = float("-inf")
        with torch.inference_mode(), masked(head, removal, None):
            states, following = head(rows, known)
            chosen.append(head.logits(states[:, -1]).argmax(-1))
        rows = torch.cat([rows, chosen[-1][:, None]], dim=1)
        known = torch.cat([known, following[:, -1:]], dim=1)
    return torch.stack(chosen, dim=1)
