# SPDX-License-Identifier: Apache-2.0
"""npugraph_ex: Huawei's compiler of FX graphs for graph mode, as far as vllm-ascend 0.23.0 asks.

The real one rewrites a graph (fusions, memory reuse, static kernels) and runs it operator by
operator inside ACL graph capture. Here the graph runs as it is, which computes the same; rewriting
is not emulated. Source: vllm-ascend's compiler_interface, which names what it takes from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import torch


class CompilerConfig(SimpleNamespace):
    """Options by name. Those that ask for what is not emulated are refused by the backend."""


def register_replacement(**_pattern: Any) -> None:
    """Accepts a pattern and what replaces it: a fusion computes the same, and is not made here."""


Compiled = Callable[..., Any]


def get_npu_backend(
    *, compiler_config: CompilerConfig | None = None
) -> Callable[[torch.fx.GraphModule, Sequence[Any]], Compiled]:
    """A backend of torch.compile that returns the graph itself.

    Raises NotImplementedError for static kernels.
    """
    if getattr(compiler_config, "static_kernel_compile", False):
        raise NotImplementedError(
            "emulated NPU has no static kernels; leave enable_static_kernel of "
            "ascend_compilation_config off"
        )
    return lambda graph, _example_inputs: graph
