# SPDX-License-Identifier: Apache-2.0
"""Hidden states of a target's layers for heads of eagle3 and dflash, where its class gives none.

vLLM asks the target's class for them (``SupportsEagle3``), but many classes return none. A model of
such a class gets a class derived from its own. Hooks on its decoder layers gather the states, and a
forward returns them beside its previous output. The decoder, which Dynamo traces, also returns the
states, so that they are results of its graphs and no side effect.

Depth ``i`` is the input of layer ``i``: for 0 the embedding. The depth that equals the number of
layers is the output of the last layer, as in
``vllm.model_executor.models.interfaces.EagleModelMixin`` (vLLM 0.23.0).

Over pipeline stages each stage gathers what its own layers give, whatever the class does by itself.
The states travel with what a stage sends to the next one (``IntermediateTensors``), and the last
stage returns them all.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.models.interfaces import EagleModelMixin, supports_eagle3
from vllm.sequence import IntermediateTensors
from vllm_ascend.patch.worker import patch_eagle3_pp_aux
from vllm_ascend.worker import model_runner_v1

from mkv_ascend.adapters.common.gathered_states import AuxiliaryStates
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import record, replaced
from mkv_ascend.rules.facts import BLOCKS

logger = get_logger(__name__)

READ_WHERE_ASKED = frozenset({"aux_hidden_state_layers", "_maybe_add_hidden_state", "super"})
"""Names of which a decoder's forward has one if it, or the class that it derives from, heeds the
depths that it was asked for."""


class Decoder:
    """Mixed in before a decoder's class. States are ``[tokens, width]``.

    Model runner V2 asks a decoder whether its states reach the last pipeline stage, and how many of
    them travel by names of vLLM's own: none of ours do.
    """

    supports_aux_hidden_states_over_pp = True
    _aux_slot_base_cached = 0
    auxiliary_states: AuxiliaryStates

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the decoder's previous output; keep its states for ``take``."""
        output, self.auxiliary_states.last_pass = super().__call__(*args, **kwargs)  # type: ignore[misc]
        return output


class Model:
    """Mixed in before a target's class; returns its output and a list of states.

    A stage before the last returns what the next one is sent, with the states among it.

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

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, list[torch.Tensor]] | Any:
        """The target's output and its states, by depth."""
        output = super().forward(*args, **kwargs)  # type: ignore[misc]
        gathered = self.auxiliary_states
        states = gathered.received(kwargs.get("intermediate_tensors")) + gathered.take()
        if len(gathered.of_stage) == len(gathered.layers):
            return output, states
        named = gathered.named(states, kwargs["positions"].shape[-1])
        if not isinstance(output, IntermediateTensors):
            return output, [*named.values()]
        output.tensors.update(named)
        return output


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


def hand_out(model: Any, vllm_config: VllmConfig) -> None:
    """Let ``model`` return hidden states of its layers, unless its class does already.

    Over pipeline stages no class does: some count their layers from their stage's first.

    Raises:
        NotImplementedError: its layers are not found.
    """
    in_stages = vllm_config.parallel_config.pipeline_parallel_size > 1
    if not in_stages and hands_out(model):
        return
    name = type(model).__name__
    decoder, layers = decoder_of(model, vllm_config.model_config.get_total_num_hidden_layers())
    states = AuxiliaryStates(
        type(decoder).__name__,
        layers,
        vllm_config.model_config.get_hidden_size(),
        range(decoder.start_layer, decoder.end_layer),
    )
    _derive(
        decoder,
        Decoder,
        forward=gathering(type(decoder).forward),
        forward_without_states=type(decoder).forward,
        auxiliary_states=states,
    )
    _derive(model, Model, auxiliary_states=states)
    if in_stages:
        model.make_empty_intermediate_tensors = with_room(
            model.make_empty_intermediate_tensors, states
        )
    if isinstance(decoder, TorchCompileWithNoGuardsWrapper) and not decoder.do_not_compile:
        # It was set up to trace the method that is now replaced.
        with set_current_vllm_config(vllm_config):
            TorchCompileWithNoGuardsWrapper.__init__(
                decoder, decoder._compile_prefix, decoder._is_encoder
            )
    logger.info("%s hands out hidden states of its layers, gathered by hooks.", name)


def with_room(
    make_empty: Callable[..., IntermediateTensors], states: AuxiliaryStates
) -> Callable[..., IntermediateTensors]:
    """``make_empty_intermediate_tensors`` of a stage that is also sent states.

    The runner makes these once and copies what it is sent into them, because graphs read them.
    """

    def make_empty_intermediate_tensors(
        batch_size: int, dtype: torch.dtype, device: torch.device
    ) -> IntermediateTensors:
        made = make_empty(batch_size, dtype, device)
        for name in states.received_names():
            made.tensors[name] = torch.zeros((batch_size, states.width), dtype=dtype, device=device)
        return made

    return make_empty_intermediate_tensors


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


def decoder_of(model: nn.Module, count: int) -> tuple[Any, list[nn.Module]]:
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
    target=(
        "vllm_ascend.worker.model_runner_v1:get_model",
        "vllm_ascend.patch.worker.patch_eagle3_pp_aux:patch_eagle3_pp_aux_propagation",
    ),
    reads=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.load_model",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.sync_and_slice_intermediate_tensors",
        "vllm.model_executor.models.utils:make_layers",
        "vllm.model_executor.models.interfaces:SupportsEagle3",
        "vllm.model_executor.models.interfaces:EagleModelMixin",
        "vllm.model_executor.models.mimo:MiMoModel.forward",
        "vllm.compilation.wrapper:TorchCompileWithNoGuardsWrapper.__init__",
    ),
)


@contextlib.contextmanager
def with_auxiliary_states(runner: Any) -> Iterator[None]:
    """Let a target that is loaded while the block runs return hidden states, where a head asks.

    The head is on the last stage alone. What it asks for stands in its configuration, which all
    stages have.
    """
    if not reads_states(runner):
        yield
        return
    load, config = model_runner_v1.get_model, runner.vllm_config

    def get_model(*args: Any, **kwargs: Any) -> nn.Module:
        model = load(*args, **kwargs)
        hand_out(model, config)
        if config.parallel_config.pipeline_parallel_size > 1:
            # vllm-ascend asks for states of eagle3 alone there.
            depths = runner._get_eagle3_aux_layers_from_config()
            model.set_aux_hidden_state_layers(
                depths or model.get_eagle3_default_aux_hidden_state_layers()
            )
            say_what_the_stage_gives(model)
        return model

    with replaced(model_runner_v1, "get_model", get_model), decoders_as_they_are():
        yield


def make_room_for_mtp(model: nn.Module) -> None:
    """Give a target of DeepSeek-V4 the buffer of the states that its MTP layer reads.

    vllm-ascend 0.30.0rc2 makes it in the first pass. Where Dynamo traces that pass, making it
    becomes a part of each pass: a graph that is replayed writes to what was made at its capture.
    """
    for decoder in model.modules():
        if getattr(decoder, "_needs_mtp_hidden_states", False):
            made: Any = decoder
            if made._mtp_hidden_buffer is None:
                made._mtp_hidden_buffer = torch.empty(
                    made._mtp_buffer_shape, dtype=made._mtp_buffer_dtype, device=made.device
                )


def say_what_the_stage_gives(model: Any) -> None:
    """Log the states that a pipeline stage gives, once it was asked for them."""
    here = model.auxiliary_states.depths
    logger.info(
        "Hidden states for the draft: this stage gives those at depths %s, and is sent %s.",
        list(here.own),
        list(here.received),
    )


def decoders_as_they_are() -> contextlib.AbstractContextManager[None]:
    """Let vllm-ascend replace no decoder's forward over pipeline stages while the block runs."""
    return replaced(patch_eagle3_pp_aux, "patch_eagle3_pp_aux_propagation", lambda _decoder: False)


def reads_states(runner: Any) -> bool:
    """Whether a head reads states of the target's layers, whichever stage the head is on."""
    if runner.use_aux_hidden_state_outputs or runner._eagle3_uses_aux_hidden_state():
        return True
    speculative = runner.vllm_config.speculative_config
    return speculative is not None and speculative.method in BLOCKS


def _derive(module: nn.Module, base: type, **attributes: Any) -> None:
    """Make ``module`` an instance of ``base`` before its own class; the name stays as it is."""
    own = type(module)
    named = {"__module__": own.__module__, **attributes}
    module.__class__ = type(own.__name__, (base, own), named)
