# SPDX-License-Identifier: Apache-2.0
"""What an MTP layer's own checkpoint has, and the engine leaves out for the target's.

vLLM gives every MTP layer the target's embeddings and output matrix, without a look at its own.
They are the same where the layer comes with the target. A checkpoint of its own may have others,
with which it was trained; then it drafts worse than it could, and nothing else shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from vllm.model_executor.models import supports_multimodal

from mkv_ascend.adapters.logging import get_logger

logger = get_logger(__name__)

ROWS = 64
"""As many rows of a matrix are compared, spread over it: a whole one takes seconds to read."""

EMBEDDINGS, OUTPUT_MATRIX = "embeddings", "output matrix"
NAMES = {
    EMBEDDINGS: ("embed_tokens.weight",),
    OUTPUT_MATRIX: ("shared_head.head.weight", "lm_head.weight"),
}
"""How names of these tensors end, that of an MTP layer before that of a whole model."""


def warn(runner: Any, proposer: Any) -> None:
    """Say which weights of an MTP draft are not used, once both models are loaded.

    ``proposer``: what has the draft; None where there is none.
    """
    speculative = runner.vllm_config.speculative_config
    if speculative is None or speculative.method != "mtp" or proposer is None:
        return
    draft, target = speculative.draft_model_config, runner.vllm_config.model_config
    folder = Path(draft.model)
    # Gemma 4's head is made for the target's embeddings, whatever its own checkpoint has.
    is_made_for_it = "gemma4" in getattr(draft.hf_config, "model_type", "")
    if draft.model == target.model or is_made_for_it or not folder.is_dir():
        return
    left_out = list(_replaced(folder, proposer.model, runner.get_model()))
    if left_out:
        logger.warning(
            "The draft in %s has its own %s, unlike the target's, and they are not used: vLLM "
            "gives each MTP layer the target's. It drafts worse if it was trained with its own. "
            "Choose layers that were trained with this target, or a head of method eagle or "
            "eagle3, which keeps its own.",
            folder,
            " and ".join(left_out),
        )


def _replaced(folder: Path, head: Any, target: Any) -> Iterator[str]:
    """What of a checkpoint is not what the head computes with, because it shares the target's."""
    text = target.get_language_model() if supports_multimodal(target) else target
    theirs = {
        EMBEDDINGS: getattr(getattr(text, "model", None), "embed_tokens", None),
        OUTPUT_MATRIX: getattr(text, "lm_head", None),
    }
    used = list(head.modules())
    for what, module in theirs.items():
        stored = _stored(folder, NAMES[what])
        if stored is None or not any(module is one for one in used):
            continue
        if not is_alike(*stored, module):
            yield what


def _stored(folder: Path, endings: Iterable[str]) -> tuple[Path, str] | None:
    """The file and the name of a tensor, that of an MTP layer if there is one."""
    from safetensors import safe_open

    found: list[tuple[bool, int, str, Path]] = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 - not a mapping
                for rank, ending in enumerate(endings):
                    if name == ending or name.endswith("." + ending):
                        of_a_layer = bool(re.search(r"(^|\.)(layers\.\d+|mtp)\.", name))
                        found.append((not of_a_layer, rank, name, file))
    if not found:
        return None
    _, _, name, file = min(found)
    return file, name


def is_alike(file: Path, name: str, module: Any) -> bool:
    """Whether a stored matrix is a module's, as far as this rank's rows that are read tell.

    A matrix of another form is taken for alike: a module that is quantised cannot be compared.
    """
    from safetensors import safe_open

    weight = module.weight
    indices = getattr(module, "shard_indices", None)
    first = 0 if indices is None else indices.org_vocab_start_index
    last = weight.shape[0] if indices is None else indices.org_vocab_end_index
    with safe_open(file, framework="pt") as tensors:
        stored = tensors.get_slice(name)
        shape = stored.get_shape()
        fits = len(shape) == weight.dim() == 2 and shape[1] == weight.shape[1]
        if not fits or not weight.dtype.is_floating_point:
            return True
        rows = range(first, min(last, shape[0]), max(1, (last - first) // ROWS))
        return all(
            torch.equal(stored[row].to(weight.dtype), weight[row - first].cpu()) for row in rows
        )
