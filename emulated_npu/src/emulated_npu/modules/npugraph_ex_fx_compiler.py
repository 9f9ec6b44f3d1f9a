# SPDX-License-Identifier: Apache-2.0
"""npugraph_ex.npu_fx_compiler: the class that vllm-ascend patches to keep compiled code."""

from __future__ import annotations

from typing import Any, NoReturn


class _NpuFxCompiler:
    """Never made here: the emulated backend compiles nothing."""

    def _get_compiled_gm(self, graph: Any, example_inputs: Any) -> NoReturn:
        raise NotImplementedError("emulated NPU has no compiler of npugraph_ex")
