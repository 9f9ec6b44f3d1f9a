# SPDX-License-Identifier: Apache-2.0
"""Weights of a draft that its files lack, or that the engine replaces by the target's."""

from __future__ import annotations

import contextlib
import math
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
from vllm.model_executor.model_loader import base_loader
from vllm.model_executor.models import supports_multimodal

from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import record, replaced

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig


# What an MTP layer's own checkpoint has, and the engine leaves out for the target's.
#
# vLLM gives every MTP layer the target's embeddings and output matrix, without a look at its own.
# They are the same where the layer comes with the target. A checkpoint of its own may have
# others, with which it was trained; then it drafts worse than it could, and nothing else shows.

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


# Refuses a draft with parameters for which its files of weights have nothing.
#
# vLLM compares what was loaded with what a model has, and leaves out what a quantisation method
# handles: every linear layer and embedding. Such a parameter keeps the memory that it was given.
# Here it is filled with NaN when the draft is built, and what is still NaN behind the loading got
# nothing, or a part. This also sees one matrix of several in one parameter, and one expert of
# many.

record(
    name="weights that a draft's files lack",
    target=(
        "vllm.model_executor.model_loader.base_loader:initialize_model",
        "vllm.model_executor.model_loader.base_loader:process_weights_after_loading",
    ),
    reads=(
        "vllm.model_executor.model_loader.base_loader:BaseModelLoader.load_model",
        "vllm.model_executor.model_loader.default_loader:DefaultModelLoader.track_weights_loading",
    ),
)

MOST_NAMED = 5
"""Parameters that a message names."""
PIECE = 1 << 24
"""Elements that are looked at together: a mask of all of a matrix of experts takes gigabytes."""
FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
WITHOUT_VALUES = frozenset(
    {torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty}
)
"""What makes a tensor of memory as it is. Parameters with values of their own keep them."""

PLAIN = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod, UnquantizedFusedMoEMethod)

_unfilled: weakref.WeakKeyDictionary[nn.Module, list[tuple[str, nn.Module]]]
_unfilled = weakref.WeakKeyDictionary()
"""Draft -> names of parameters that got nothing, and the modules that have them."""


class _WithoutValues(TorchFunctionMode):
    """Fills tensors that are made of memory as it is with NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[torch.Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if func in WITHOUT_VALUES and made.dtype in FLOATS and not made.is_meta:
            self.made.append(made.fill_(math.nan))
        return made

    def leave_parameters_alone(self, model: nn.Module) -> None:
        """Give what is no parameter zeros where nothing wrote: a buffer may be read as it is."""
        kept = {one.untyped_storage().data_ptr() for one in model.parameters() if not one.is_meta}
        for made in self.made:
            if made.untyped_storage().data_ptr() not in kept:
                made.masked_fill_(made.isnan(), 0)


@contextlib.contextmanager
def noted() -> Iterator[None]:
    """Note which parameters of the model that is loaded while the block runs got nothing."""
    build, process = base_loader.initialize_model, base_loader.process_weights_after_loading

    def build_marked(*args: Any, **kwargs: Any) -> nn.Module:
        with _WithoutValues() as marked, torch.no_grad():
            model = build(*args, **kwargs)
        with torch.no_grad():
            marked.leave_parameters_alone(model)
        return model

    def look_first(model: nn.Module, *args: Any, **kwargs: Any) -> None:
        _unfilled[model] = _without_values(model)
        process(model, *args, **kwargs)

    with (
        replaced(base_loader, "initialize_model", build_marked),
        replaced(base_loader, "process_weights_after_loading", look_first),
    ):
        yield


def _without_values(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Parameters that got nothing, or a part, and the modules that have them.

    A quantised layer has parameters for which some formats of files hold nothing (an offset that is
    zero): what no quantised layer got is one of those.
    """
    found, got = [], set()
    for name, parameter in model.named_parameters():
        path, _, kind = name.rpartition(".")
        module = model.get_submodule(path)
        if has_unfilled(parameter):
            found.append((name, module))
        elif _is_quantised(module):
            got.add(kind)
    return [
        (name, module)
        for name, module in found
        if not _is_quantised(module) or name.rpartition(".")[2] in got
    ]


def _is_quantised(module: nn.Module) -> bool:
    method = getattr(module, "quant_method", None)
    return method is not None and not isinstance(method, PLAIN)


def has_unfilled(parameter: torch.Tensor) -> bool:
    """Whether some element is NaN."""
    if parameter.dtype not in FLOATS or parameter.is_meta:
        return False
    # A sum needs no memory. Of numbers it can be NaN only by infinities.
    if not torch.isnan(parameter.detach().sum(dtype=torch.float32)):
        return False
    pieces: Iterable[torch.Tensor] = parameter.detach().reshape(-1).split(PIECE)
    return any(bool(torch.isnan(piece).any()) for piece in pieces)


def _was_filled(parameter: torch.Tensor | None) -> bool:
    """Whether something wrote it behind the loading, as embeddings of another stage."""
    is_plain = parameter is not None and parameter.dtype in FLOATS
    return parameter is not None and is_plain and not has_unfilled(parameter)


def refuse(config: VllmConfig, proposer: Any) -> None:
    """Refuse a draft that computes with what nobody wrote, once it has what it shares.

    Args:
        config: of the engine.
        proposer: what has the draft; None where there is none.

    Raises:
        ValueError: with the names of parameters.
    """
    draft: nn.Module | None = getattr(proposer, "model", None)
    found = _unfilled.pop(draft, None) if draft is not None else None
    if draft is None or not found:
        return
    used = set(draft.modules())
    folder = config.speculative_config.draft_model_config.model
    now = dict(draft.named_parameters())
    names = sorted(
        name for name, module in found if module in used and not _was_filled(now.get(name))
    )
    if not names:
        return
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    raise ValueError(
        f"the draft's files of weights in {folder} have nothing, or a part, for "
        f"{', '.join(names[:MOST_NAMED])}{more}, which its config.json promises: the draft would "
        "compute with memory that nobody wrote. Possible: files with all weights of the class "
        "that config.json names. Change: download the draft again, or correct its config.json "
        "or the method of --speculative-config."
    )
