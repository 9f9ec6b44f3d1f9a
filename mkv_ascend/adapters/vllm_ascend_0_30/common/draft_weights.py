# SPDX-License-Identifier: Apache-2.0
"""New weights of a draft while the engine runs, and whether sleep mode drops captured graphs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils.stateless import _reparametrize_module
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.model_loader.reload import layerwise
from vllm_ascend.ascend_config import get_ascend_config

from mkv_ascend.adapters.patching import replaced

# What quantised layers make of their weights and keep beside them, when these are sent anew.
#
# vLLM copies new weights to where captured graphs read the old ones, parameters and buffers
# alone. The schemes of vllm-ascend make plain tensors, too: reciprocals of the scales of inputs
# (``W8A8``), and those of keys and values of 8 bits (``C8``) once, when they are used first.

SCALE_OF_KEYS = "k_cache_scale"
"""The parameter of attention to keys and values in ``C8``, and of no other format."""
PREPARED = "_c8_scales_prepared"
"""What a layer has once its scales of keys and values are prepared."""


def takes_weights_in_place(layer: nn.Module) -> bool:
    """Whether a layer's weights are loaded where they lie, without vLLM's way by another device.

    The scales of ``C8`` are one number until they are loaded, and their loader gives the parameter
    other memory; vLLM counts on a parameter without memory, which takes none. Once loaded they have
    their shape, and what is sent is copied.

    Raises:
        NotImplementedError: for keys and values of another format.
    """
    method = getattr(layer, "quant_method", None)
    if not isinstance(method, BaseKVCacheMethod):
        return False
    if SCALE_OF_KEYS not in layer._parameters:
        scheme = getattr(method, "quant_method", method)
        raise NotImplementedError(
            "new weights for a draft (start_draft_weight_update) were asked for whose attention is "
            f"quantised by {type(scheme).__name__}; what it makes of its scales is not made anew. "
            "Drafts with keys and values in C8, or not quantised, take new weights. Start the "
            "engine anew with the new draft."
        )
    return True


class DerivedTensors:
    """Tensors beside the weights of some layers, as they lie now."""

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        self._layers = list(layers)
        self._before = [dict(_beside(layer)) for layer in self._layers]

    @torch.inference_mode()  # As passes, which prepared some of them.
    def refresh(self) -> None:
        """Make them of the weights as they are, where they were.

        Raises:
            ValueError: one has another shape.
        """
        for layer, before in zip(self._layers, self._before, strict=True):
            _prepare_again(layer)
            for name, made in list(_beside(layer)):
                if name in before and before[name] is not made:
                    _put(made, before[name], name)
                    # The layer gets its own tensor back, which graphs read.
                    vars(layer)[name] = before[name]


def _beside(layer: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return ((name, it) for name, it in vars(layer).items() if isinstance(it, torch.Tensor))


def _prepare_again(layer: Any) -> None:
    """Let attention to keys and values of 8 bits take the scales that the layer has now."""
    if hasattr(layer, PREPARED):
        delattr(layer, PREPARED)
        layer.impl._prepare_c8_scales(layer, layer._c8_k_scale.device)


def _put(made: torch.Tensor, where: torch.Tensor, name: str) -> None:
    if made.shape != where.shape:
        raise ValueError(
            f"a draft was sent weights of which {name} is made with shape {tuple(made.shape)}; it "
            f"had {tuple(where.shape)}, where captured graphs read it. Send weights quantised as "
            "those before, or start the engine anew with the new draft."
        )
    where.copy_(made)


# New weights for the draft of a running engine, by vLLM's transfer of weights from a trainer.
#
# vLLM 0.30.0 lets a trainer choose the model that it sends weights to: ``start_weight_update`` or
# ``start_draft_weight_update`` begin, and ``update_weights`` and ``finish_weight_update`` follow.
# vllm-ascend's worker has the first of them alone. Its engines of transfer take another model, so
# a draft is one more model to them.

BUILD_FUSED = "_build_fused_kv_buffers"
"""The method of vLLM's drafts of mask tokens that makes them."""


def aim(worker: Any, proposer: Any = None) -> None:
    """Choose what the next update of weights is for.

    Args:
        worker: of either model runner.
        proposer: whose draft it is for; None: it is for the target.
    """
    engine = worker.weight_transfer_engine
    if engine is None or worker._weight_update_active:
        return  # vllm-ascend's start_weight_update says what is wrong.
    engine.reset_weight_update_target()
    if proposer is not None:
        target = worker.model_runner.get_model()
        # A draft that vllm-ascend loads has none of its own.
        config = getattr(proposer, "_draft_config", None) or worker.vllm_config
        draft = DraftToUpdate(proposer.model, target, config)
        engine.set_weight_update_target(draft, draft.config.draft_model_config)


def aim_at_draft(worker: Any, proposer: Any) -> None:
    """The next update of weights is for what drafts.

    Raises:
        NotImplementedError: nothing drafts here whose weights can be sent.
        RuntimeError: they sleep.
    """
    if not isinstance(getattr(proposer, "model", None), nn.Module):
        raise NotImplementedError(
            "new weights for a draft (start_draft_weight_update) were asked for; this engine has "
            "no draft that is a model. Give one by --speculative-config, or send the target's "
            "weights alone (start_weight_update)."
        )
    if worker.sleeping_draft.is_asleep:
        raise RuntimeError(
            "new weights for a draft (start_draft_weight_update) were asked for while its memory "
            "sleeps. They can be sent once it is awake; call wake_up, or wake_up with the tag "
            "'weights', before."
        )
    aim(worker, proposer)


@contextlib.contextmanager
def finishing(worker: Any) -> Iterator[None]:
    """An update of weights ends in the block: a draft's are then as its passes take them."""
    engine = worker.weight_transfer_engine
    draft = getattr(engine, "model", None)
    if not isinstance(draft, DraftToUpdate):
        yield
        return
    with draft.configured():
        yield
        engine.model.finish()
        engine.reset_weight_update_target()


class DraftToUpdate:
    """A draft, without what it shares with its target, as an engine of transfer takes a model.

    A head may use the target's embeddings and output matrix. They are the target's to update, and
    a trainer may well send them with the head's own weights: then they must be the target's.
    """

    def __init__(self, draft: nn.Module, target: nn.Module, config: Any) -> None:
        self._draft: Any = draft
        self._vllm_config = config
        self.config = config.speculative_config
        of_target = {id(parameter) for parameter in target.parameters()}
        modules = {id(module) for module in target.modules()}
        # Each module once, whatever its names: a layer that stands in two places is swapped once.
        self._shared = {
            f"{prefix}.{name}".lstrip("."): parameter
            for prefix, module in draft.named_modules()
            for name, parameter in module.named_parameters(recurse=False)
            if id(parameter) in of_target
        }
        own = [
            module
            for module in draft.modules()
            if id(module) not in modules
            and not any(id(weight) in of_target for weight in module.parameters(recurse=False))
        ]
        self._derived = DerivedTensors(own)
        self._own = [module for module in own if not takes_weights_in_place(module)]
        self._left_out = [
            (module, name) for module in self._own for name in _parameters_taken_away(module)
        ]
        self._fused = _FusedKeys(draft)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._draft, name)

    def modules(self) -> Iterator[nn.Module]:
        """Those whose weights are the draft's own."""
        return iter(self._own)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        """Load weights named as in the draft's checkpoint.

        Where that fails, layers that still wait for some of theirs keep what they had: the next
        update begins anew, and a draft that is part old, part new still drafts.

        Raises:
            ValueError: one that the draft shares is not the target's.
        """
        try:
            return self._load(weights)
        except BaseException:
            for module in self._own:
                waiting = layerwise.get_layerwise_info(module)
                if waiting.can_load():
                    layerwise._place_kernel_tensors(module, waiting)
                waiting.reset()
            self.finish()
            raise

    def finish(self) -> None:
        """Make of the weights what the model makes when it is loaded, in the same memory."""
        for module, name in self._left_out:
            if not hasattr(module, name):
                module.register_parameter(name, None)
        self._fused.refresh()
        self._derived.refresh()

    def configured(self) -> contextlib.AbstractContextManager[Any]:
        """Its configuration is vLLM's while the block runs, as when it was loaded."""
        return set_current_vllm_config(self._vllm_config)

    def _load(self, weights: Iterable[tuple[str, torch.Tensor]]) -> Any:
        compared = {name: _Compared(name, shared) for name, shared in self._shared.items()}
        with (
            self.configured(),
            self._fused.left_alone(),
            _reparametrize_module(
                self._draft, {name: one.instead for name, one in compared.items()}
            ),
        ):
            return self._draft.load_weights(weights)


def _parameters_taken_away(module: nn.Module) -> list[str]:
    """Names that had a parameter when the model was built and have None since it was loaded.

    vLLM forgets them at the end of an update, with all that it built anew for it: a mapping of the
    vocabulary, of a head that has the target's.
    """
    built, _ = layerwise.get_layerwise_info(module).restore_metadata
    return [
        name for name in built if name in module._parameters and module._parameters[name] is None
    ]


class _FusedKeys:
    """Matrices that a draft of mask tokens (DFlash) makes of all layers' keys and values.

    It makes them anew at the end of each call of ``load_weights``, when some layers may still wait
    for weights, and in memory that no captured graph reads.
    """

    def __init__(self, draft: nn.Module) -> None:
        inner = getattr(draft, "model", None)
        self._inner = inner if hasattr(inner, BUILD_FUSED) else None

    def left_alone(self) -> contextlib.AbstractContextManager[None]:
        """Nothing is made while the block runs."""
        if self._inner is None:
            return contextlib.nullcontext()
        return replaced(self._inner, BUILD_FUSED, lambda: None)

    def refresh(self) -> None:
        """Make them of the weights as they are, where they were."""
        if self._inner is None:
            return
        # It makes a list of its layers, too; the model's own list is ours (``LayerInGroup``).
        made = copy.copy(self._inner)
        getattr(type(made), BUILD_FUSED)(made)
        for name, before in vars(self._inner).items():
            if isinstance(before, torch.Tensor) and before is not vars(made)[name]:
                before.copy_(vars(made)[name])


class _Compared:
    """Stands for a parameter that the target shares while a draft's weights are loaded."""

    def __init__(self, name: str, shared: nn.Parameter) -> None:
        self._name, self._shared = name, shared
        self.instead = _like(shared, device="meta")
        self._load = getattr(shared, "weight_loader", None)
        self.instead.weight_loader = self.compare

    def compare(self, _parameter: nn.Parameter, sent: torch.Tensor, *args: Any, **kw: Any) -> None:
        """Compare what was sent, this rank's part of it, with what the target has."""
        ours = _like(self._shared, device=self._shared.device)
        if self._load is None:
            ours.data.copy_(sent)
        else:
            self._load(ours, sent, *args, **kw)
        if not torch.equal(ours, self._shared):
            raise ValueError(
                f"a draft was sent a {self._name} that is not its target's, and it uses the "
                "target's. Leave it out of what start_draft_weight_update begins, or send the "
                "target's weights first (start_weight_update)."
            )


def _like(parameter: nn.Parameter, device: Any) -> Any:
    """An empty parameter with what a loader reads of it."""
    made = nn.Parameter(torch.empty_like(parameter, device=device), requires_grad=False)
    vars(made).update(vars(parameter))
    return made


# Whether sleep mode drops captured graphs on vllm-ascend 0.30.0rc2.


def graphs_sleep() -> bool:
    """Whether it drops them, to capture them anew at its end."""
    options = get_ascend_config().rl_config
    return bool(options.enabled and options.sleep_mode_extra_cleanup)
