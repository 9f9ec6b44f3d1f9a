# SPDX-License-Identifier: Apache-2.0
"""Hidden states that hooks gather from the decoder layers of one pipeline stage."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from vllm.sequence import IntermediateTensors

from mkv_ascend.drafting.stages import DepthsOfStage, depths_of_stage, layer_of

# Whether a function reads an argument, found in its bytecode without a call.

JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
ENDS = ("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE", "RETURN", "RAISE", "RERAISE")
"""Beginnings of the names of instructions behind which the next one does not follow."""


def reads_argument(function: Callable[..., Any], name: str) -> bool:
    """Whether some path through ``function`` reads its argument ``name`` before it is replaced.

    False also where there is no such argument.
    """
    function = inspect.unwrap(function)
    instructions = list(dis.get_instructions(function))
    at = {instruction.offset: index for index, instruction in enumerate(instructions)}
    starts, seen = [0], set[int]()
    while starts:
        index = starts.pop()
        while index < len(instructions) and index not in seen:
            seen.add(index)
            instruction = instructions[index]
            if instruction.argval == name and _is_of_a_variable(instruction):
                if instruction.opname.startswith("LOAD"):
                    return True
                break
            if instruction.opcode in JUMPS:
                starts.append(at[instruction.argval])
            if instruction.opname.startswith(ENDS):
                break
            index += 1
    return False


def _is_of_a_variable(instruction: dis.Instruction) -> bool:
    return any(kind in instruction.opname for kind in ("_FAST", "_DEREF", "_CLOSURE"))


# Depth ``i`` is the input of layer ``i``; ``patches/auxiliary_states.py`` says who asks for them.

HANDED_ON = "mkv_ascend_state_"
"""Before its depth: the name of a state among the tensors that a stage sends to the next one."""

RESIDUAL = "residual"
"""vLLM's name for the part of a state that a decoder layer has not added yet."""


@dataclass
class AuxiliaryStates:
    """Hidden states that the hooks of one decoder gather.

    Attributes:
        decoder: name of its class, for messages.
        layers: the target's decoder layers, in order; those of other stages are placeholders.
        width: elements of a state per token.
        of_stage: the layers that this stage has.
        depths: what the stage is sent of the states that are asked for, and what it gives.
        gathered: states of the running forward, ``[tokens, width]`` each, by depth.
        last_pass: states of the last finished forward; empty once they are taken.
        hooks: the hooks that ``ask`` put on the layers.
    """

    decoder: str
    layers: list[nn.Module]
    width: int
    of_stage: range
    depths: DepthsOfStage = field(default_factory=DepthsOfStage)
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
        self.depths = depths_of_stage(depths, self.of_stage)
        for depth in self.depths.own:
            layer = self.layers[layer_of(depth)]
            if depth == 0:
                hook = layer.register_forward_pre_hook(self._before_the_first, with_kwargs=True)
            else:
                hook = layer.register_forward_hook(self._behind(layer))
            self.hooks.append(hook)

    def take(self) -> list[torch.Tensor]:
        """Return and forget the states of the last finished forward."""
        states, self.last_pass = self.last_pass, []
        return states

    def received_names(self) -> list[str]:
        """Names of the states that this stage is sent, by depth."""
        return [f"{HANDED_ON}{depth}" for depth in self.depths.received]

    def received(self, sent: IntermediateTensors | None) -> list[torch.Tensor]:
        """The states of earlier stages, from what this one is sent."""
        return [] if sent is None else [sent[name] for name in self.received_names()]

    def named(self, states: list[torch.Tensor], tokens: int) -> dict[str, torch.Tensor]:
        """The states of this stage and of earlier ones, by depth, as a next stage is sent them.

        Raises:
            NotImplementedError: the decoder ran its layers in another way than by calling them, or
                on a share of the tokens.
        """
        own = [f"{HANDED_ON}{depth}" for depth in self.depths.own]
        names = [*self.received_names(), *own]
        if [len(state) for state in states] != [tokens] * len(names):
            raise NotImplementedError(
                f"hidden states of {tokens} tokens at {len(names)} depths are asked for, and "
                f"{self.decoder} gave {[len(state) for state in states]} of them over pipeline "
                "stages. Use tensor parallelism without sequence parallelism, or a draft model."
            )
        return dict(zip(names, states, strict=True))

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
