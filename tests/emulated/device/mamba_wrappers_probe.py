# SPDX-License-Identifier: Apache-2.0
"""Runs the CPU kernels of Mamba's Triton wrappers beside the interpreted kernels they replace.

Prints a JSON object: wrapper -> largest difference of all that it returns and writes.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.model_executor.layers.mamba.ops import (
    causal_conv1d,
    mamba_ssm,
    ssd_bmm,
    ssd_chunk_scan,
    ssd_chunk_state,
    ssd_combined,
    ssd_state_passing,
)
from vllm_ascend._310p.ops import causal_conv1d as torch_convolution
from vllm_ascend.ops.triton.mamba import causal_conv1d as ascend_convolution
from vllm_ascend.ops.triton.triton_utils import init_device_properties_triton

LENGTHS, BLOCKS, CHANNELS, WIDTH = (9, 1, 2), (5, 1, 3), 8, 4
HEADS, SIZE, GROUPS, STATES, CHUNK = 4, 16, 2, 16, 16


# In a worker vllm-ascend puts its own in the place of it, where it finds Triton.
original_of_vllm = causal_conv1d.causal_conv1d_update


def on_npu(value: Any) -> Any:
    return value.npu() if isinstance(value, torch.Tensor) else value


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def starts(lengths: tuple[int, ...]) -> torch.Tensor:
    return int32(0, *torch.tensor(lengths).cumsum(0).tolist())


def difference(
    wrapper: Any, written: tuple[str, ...], other: Any = None, **arguments: Any
) -> float:
    """Between the CPU kernel and the original; ``written`` are the arguments they write to."""
    outcomes = []
    for function in (wrapper, other or wrapper.emulated_npu_original):
        given = {
            name: on_npu(value.clone() if name in written else value)
            for name, value in arguments.items()
        }
        if "conv_state" in given or "conv_states" in given:
            name = "conv_state" if "conv_state" in given else "conv_states"
            given[name] = given[name].transpose(1, 2)
        result = function(**given)
        outcomes.append([*(given[name] for name in written), *([] if result is None else [result])])
    pairs = zip(*outcomes, strict=True)
    return max(float((one.cpu().double() - two.cpu().double()).abs().max()) for one, two in pairs)


def prompts() -> float:
    return difference(
        causal_conv1d.causal_conv1d_fn,
        ("conv_states",),
        # vLLM's own is not to be interpreted; this is vllm-ascend's for the 310P.
        torch_convolution.causal_conv1d_fn,
        x=random(sum(LENGTHS), CHANNELS).t(),
        weight=random(CHANNELS, WIDTH),
        bias=random(CHANNELS),
        conv_states=random(6, WIDTH + 1, CHANNELS),
        query_start_loc=starts(LENGTHS),
        cache_indices=int32(*BLOCKS),
        has_initial_state=torch.tensor([True, False, True]),
        activation=None,
    )


def update(**arguments: Any) -> float:
    """The larger of the differences of vLLM's wrapper and vllm-ascend's."""
    return max(
        difference(
            wrapper,
            ("conv_state",),
            weight=random(CHANNELS, WIDTH, dtype=dtype),
            bias=random(CHANNELS, dtype=dtype),
            activation="silu",
            conv_state=random(6, WIDTH + 2, CHANNELS, dtype=dtype),
            **{**arguments, "x": arguments["x"].to(dtype)},
        )
        for wrapper, dtype in wrappers_of_updates()
    )


def wrappers_of_updates() -> list[tuple[Any, torch.dtype]]:
    """Each with the dtype to compare in. vllm-ascend 0.30 has no wrapper of its own any more."""
    found = [(original_of_vllm, torch.float32)]
    if hasattr(ascend_convolution, "causal_conv1d_update_npu"):
        # To which its interpreted kernel rounds.
        found.append((ascend_convolution.causal_conv1d_update_npu, torch.float16))
    return found


def verification() -> float:
    return update(
        x=random(4 + 1 + 2, CHANNELS),
        conv_state_indices=torch.stack([int32(*BLOCKS), int32(0, 0, 0)], dim=1),
        num_accepted_tokens=int32(3, 1, 2),
        query_start_loc=starts((4, 1, 2)),
        max_query_len=4,
    )


def one_token_each() -> float:
    return update(x=random(3, CHANNELS), conv_state_indices=int32(*BLOCKS))


def chunk_scan() -> float:
    for kernel in (
        ssd_bmm._bmm_chunk_fwd_kernel,
        ssd_chunk_scan._chunk_scan_fwd_kernel,
        ssd_chunk_state._chunk_cumsum_fwd_kernel,
        ssd_chunk_state._chunk_state_fwd_kernel,
        ssd_state_passing._state_passing_fwd_kernel,
    ):
        autotuner = kernel
        while not hasattr(autotuner, "configs"):
            autotuner = autotuner.fn
        # With one choice of blocks there is nothing to time.
        del autotuner.configs[1:]
    tokens = CHUNK + 5 + 3
    return difference(
        ssd_combined.mamba_chunk_scan_combined_varlen,
        ("out",),
        x=random(tokens, HEADS, SIZE),
        dt=random(tokens, HEADS),
        A=-random(HEADS).abs(),
        B=random(tokens, GROUPS, STATES),
        C=random(tokens, GROUPS, STATES),
        chunk_size=CHUNK,
        cu_seqlens=int32(0, CHUNK + 5, tokens),
        cu_chunk_seqlens=int32(0, CHUNK, CHUNK + 5, tokens),
        last_chunk_indices=int32(1, 2),
        seq_idx=int32(0, 0, 1),
        out=random(tokens, HEADS, SIZE),
        D=random(HEADS),
        dt_bias=random(HEADS),
        initial_states=random(2, HEADS, SIZE, STATES),
        dt_softplus=True,
        state_dtype=torch.float32,
    )


def state_update() -> float:
    lengths = (3, 1)
    tokens = sum(lengths)
    return difference(
        mamba_ssm.selective_state_update,
        ("state", "out"),
        state=random(9, HEADS, SIZE, STATES),
        x=random(tokens, HEADS, SIZE),
        dt=random(tokens, HEADS, 1).expand(-1, -1, SIZE),
        A=-random(HEADS, 1, 1).abs().expand(-1, SIZE, STATES),
        B=random(tokens, GROUPS, STATES),
        C=random(tokens, GROUPS, STATES),
        D=random(HEADS, 1).expand(-1, SIZE),
        dt_bias=random(HEADS, 1).expand(-1, SIZE),
        dt_softplus=True,
        state_batch_indices=torch.stack([int32(1, 2, 3), int32(4, 5, 6)]),
        out=random(tokens, HEADS, SIZE),
        num_accepted_tokens=int32(2, 1),
        cu_seqlens=starts(lengths),
    )


def main() -> None:
    torch.manual_seed(0)
    init_device_properties_triton()
    checks = (prompts, verification, one_token_each, chunk_scan, state_update)
    print(json.dumps({check.__name__: check() for check in checks}))


if __name__ == "__main__":
    main()
