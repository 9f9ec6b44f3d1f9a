# SPDX-License-Identifier: Apache-2.0
"""Hidden states of a target's layers for heads of eagle3 and dflash, where its class gives none.

vLLM asks the target's class for them (``SupportsEagle3``), but many classes return none. A model of
such a class gets a class derived from its own. Hooks on its decoder layers gather the states, and a
forward returns them beside its previous output. The decoder, which Dynamo traces, also returns the
states, so that they are results of its graphs and no side effect.

Depth ``i`` is the input of layer ``i``: for 0 the embedding. The depth that equals the number of
layers is the output of the last layer, as in
``vllm.model_executor.models.interfaces.EagleModelMixin`` (vLLM 0.23.0).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.models.interfaces import EagleModelMixin, supports_eagle3
from vllm_ascend.worker import model_runner_v1

from mkv_ascend.adapters.common.patches.read_arguments import reads_argument
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import record

logger = get_logger(__name__)

RESIDUAL = "residual"
"""vLLM's name for the part of a state that a decoder layer has not added yet."""

READ_WHERE_ASKED = frozenset({"aux_hidden_state_layers", "_maybe_add_hidden_state", "super"})
"""Names of which a decoder's forward has one if it, or the class that it derives from, heeds the
depths that it was asked for."""


@dataclass
class AuxiliaryStates:
    """Hidden states that the hooks of one decoder gather.

    Attributes:
        decoder: name of its class, for messages.
        layers: its decoder layers, in order.
        width: elements of a state per token.
        gathered: states of the running forward, ``[tokens, width]`` each, by depth.
        last_pass: states of the last finished forward; empty once they are taken.
        hooks: the hooks that ``ask`` put on the layers.
    """

    decoder: str
    layers: list[nn.Module]
    width: int
    gathered: list[torch.Tensor] = field(default_factory=list)
    last_pass: list[torch.Tensor] = field(default_factory=list)
    hooks: list[RemovableHandle] = field(default_factory=list)

    def ask(self, depths: tuple[int, ...]) -> None:
        """Gather the states at ``depths``, and no others, from now on.

        Raises:
            ValueError: the decoder does not have these depths.
        """
        last = len(self.layers)
        beyond = [depth for depth in depths if not 0 <= depth <= last]
        if beyond:
            raise ValueError(
                f"hidden states at the depths {list(depths)} are asked for, and {self.decoder} has "
                f"{last} layers, so depths from 0 to {last}. Set eagle_aux_hidden_state_layer_ids "
                "in the configuration of the head to the depths that it was trained with."
            )
        while self.hooks:
            self.hooks.pop().remove()
        for depth in sorted(set(depths)):
            layer = self.layers[max(depth - 1, 0)]
            if depth == 0:
                hook = layer.register_forward_pre_hook(self._before_the_first, with_kwargs=True)
            else:
                hook = layer.register_forward_hook(self._behind(layer))
            self.hooks.append(hook)

    def take(self) -> list[torch.Tensor]:
        """Return and forget the states of the last finished forward."""
        states, self.last_pass = self.last_pass, []
        return states

    def _before_the_first(self, _layer: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        states = [
            value
            for value in (*args, *kwargs.values())
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        ]
        self._gather(states, adds=False)

    def _behind(self, layer: nn.Module) -> Callable[[nn.Module, Any, Any], None]:
        """A hook for the output of ``layer``."""
        # Some layers add everything themselves and return a residual that is never read.
        adds = reads_argument(type(layer).forward, RESIDUAL)

        def gather(_layer: nn.Module, _args: Any, output: Any) -> None:
            parts = output if isinstance(output, tuple) else (output,)
            self._gather([part for part in parts if part is not None], adds)

        return gather

    def _gather(self, parts: list[torch.Tensor], adds: bool) -> None:
        """Keep the sum of ``parts``: hidden states, and a residual if it is still to be added."""
        whole = len(parts) == 1 or (len(parts) == 2 and parts[0].shape == parts[1].shape)
        if not whole or parts[0].dim() != 2 or parts[0].shape[1] != self.width:
            shapes = " and ".join(str(tuple(part.shape)) for part in parts)
            raise NotImplementedError(
                f"hidden states of the layers of {self.decoder} are asked for, and its layers hand "
                f"on {shapes or 'none'} where a head takes one state of {self.width} numbers per "
                "token. Use a draft model, or the target's own MTP layer."
            )
        # A copy, because a layer may change its input in place.
        self.gathered.append(parts[0] + parts[1] if adds and len(parts) == 2 else parts[0].clone())


class Decoder:
    """Mixed in before a decoder's class. States are ``[tokens, width]``."""

    auxiliary_states: AuxiliaryStates

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the decoder's previous output; keep its states for ``take``."""
        output, self.auxiliary_states.last_pass = super().__call__(*args, **kwargs)  # type: ignore[misc]
        return output


class Model:
    """Mixed in before a target's class; returns its output and a list of states.

    The members of ``SupportsEagle3`` are written here, because an instance cannot be made one of
    that class.
    """

    supports_eagle3 = True
    has_own_lm_head = False
    has_own_embed_tokens = False
    auxiliary_states: AuxiliaryStates

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        """Return the states at these depths from now on."""
        self.auxiliary_states.ask(layers)

    def get_eagle3_default_aux_hidden_state_layers(self) -> tuple[int, ...]:
        """The depths that vLLM takes where the head's configuration names none."""
        count = len(self.auxiliary_states.layers)
        return (2, count // 2, count - 3)

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, list[torch.Tensor]]:
        """The target's output and its states, by depth."""
        return super().forward(*args, **kwargs), self.auxiliary_states.take()  # type: ignore[misc]


def gathering(original: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` of a decoder: the result of ``original``, and the gathered states.

    It has the signature of ``original``, because vLLM finds the dynamic dimensions by it. It has no
    free variables, because vLLM exchanges its code for the traced one.
    """

    def forward(self: Any, *args: Any, **kwargs: Any) -> tuple[Any, list[torch.Tensor]]:
        gathered = self.auxiliary_states.gathered
        gathered.clear()
        output = self.forward_without_states(*args, **kwargs)
        states = list(gathered)
        gathered.clear()
        return output, states

    return functools.wraps(original)(forward)


def hand_out(model: nn.Module, vllm_config: VllmConfig) -> None:
    """Let ``model`` return hidden states of its layers, unless its class does already.

    Raises:
        NotImplementedError: under pipeline parallelism, and where its layers are not found.
    """
    if hands_out(model):
        return
    name = type(model).__name__
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        raise NotImplementedError(
            f"{vllm_config.speculative_config.method} over {name} with "
            f"{vllm_config.parallel_config.pipeline_parallel_size} pipeline stages: vLLM's class "
            "hands out no hidden states, and mkv_ascend gathers them in one stage only. Use one "
            "stage, or tensor parallelism."
        )
    decoder, layers = decoder_of(model, vllm_config.model_config.get_total_num_hidden_layers())
    states = AuxiliaryStates(
        type(decoder).__name__, layers, vllm_config.model_config.get_hidden_size()
    )
    _derive(
        decoder,
        Decoder,
        forward=gathering(type(decoder).forward),
        forward_without_states=type(decoder).forward,
        auxiliary_states=states,
    )
    _derive(model, Model, auxiliary_states=states)
    if isinstance(decoder, TorchCompileWithNoGuardsWrapper) and not decoder.do_not_compile:
        # It was set up to trace the method that is now replaced.
        with set_current_vllm_config(vllm_config):
            TorchCompileWithNoGuardsWrapper.__init__(
                decoder, decoder._compile_prefix, decoder._is_encoder
            )
    logger.info("%s hands out hidden states of its layers, gathered by hooks.", name)


def hands_out(model: nn.Module) -> bool:
    """Whether the class of ``model`` returns hidden states of its layers when it is asked.

    MiMo's says so, because it derives from Qwen2's; but its decoder has a forward of its own, which
    does not look for what was asked.
    """
    if not supports_eagle3(model):
        return False
    decoders = [module for module in model.modules() if isinstance(module, EagleModelMixin)]
    return all(
        READ_WHERE_ASKED & {*inspect.unwrap(type(decoder).forward).__code__.co_names}
        for decoder in decoders
    )


def decoder_of(model: nn.Module, count: int) -> tuple[nn.Module, list[nn.Module]]:
    """The module that runs the ``count`` layers of a target, and these layers.

    It holds the results of vLLM's ``make_layers``: first layer, last layer and the list.

    Raises:
        NotImplementedError: there is no such module, or several.
    """
    language_model = getattr(model, "get_language_model", lambda: model)()
    found = [
        (module, list(layers))
        for module in language_model.modules()
        if hasattr(module, "start_layer") and hasattr(module, "end_layer")
        for layers in module.children()
        if isinstance(layers, nn.ModuleList) and len(layers) == count
    ]
    if len(found) != 1:
        raise NotImplementedError(
            f"hidden states of the layers of {type(model).__name__} are asked for, and "
            f"{len(found)} of its modules hold {count} layers made by vLLM's make_layers; exactly "
            "one must. Use a draft model, or the target's own MTP layer."
        )
    return found[0]


LOADER = record(
    name="hidden states of any target",
    target="vllm_ascend.worker.model_runner_v1:get_model",
    reads=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.load_model",
        "vllm.model_executor.models.utils:make_layers",
        "vllm.model_executor.models.interfaces:SupportsEagle3",
        "vllm.model_executor.models.interfaces:EagleModelMixin",
        "vllm.model_executor.models.mimo:MiMoModel.forward",
        "vllm.compilation.wrapper:TorchCompileWithNoGuardsWrapper.__init__",
    ),
    writes=("__class__",),
    why="A head of eagle3 or dflash takes hidden states of the target's layers. Classes that hand "
    "out none are refused: Gemma3, Qwen3-Next, Granite-4, LFM2 and many others. MiMo's says that "
    "it hands out some, and does not. Instances of them and of their decoders get a class derived "
    "from their own.",
    until="vLLM gathers hidden states outside of the models' classes",
    test="tests/emulated/drafting/test_auxiliary_states.py",
)


@contextlib.contextmanager
def with_auxiliary_states(asked: bool, vllm_config: VllmConfig) -> Iterator[None]:
    """Let a target that is loaded while the block runs return hidden states, if ``asked``."""
    if not asked:
        yield
        return
    load = model_runner_v1.get_model

    def get_model(*args: Any, **kwargs: Any) -> nn.Module:
        model = load(*args, **kwargs)
        hand_out(model, vllm_config)
        return model

    with LOADER.replaced(get_model):
        yield


def _derive(module: nn.Module, base: type, **attributes: Any) -> None:
    """Make ``module`` an instance of ``base`` before its own class; the name stays as it is."""
    own = type(module)
    named = {"__module__": own.__module__, **attributes}
    module.__class__ = type(own.__name__, (base, own), named)
