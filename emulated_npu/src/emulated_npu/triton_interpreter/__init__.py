# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's Triton kernels on the emulated NPU, run by Triton's own interpreter.

Some kernels of vllm-ascend run even where vLLM says that there is no Triton (the slot mapping of
the block table), so they are interpreted in both settings. The setting ``has_triton`` decides only
what vLLM's ``HAS_TRITON`` says, and so which code vllm-ascend takes where it has two.

- ``executor``: runs a kernel's grid on zero-copy aliases and counts the launch
- ``language``: what triton-ascend's language has beyond Triton 3.4.0's
- ``corrections``: what Triton's interpreter does wrong or too often
- ``bfloat16``: arithmetic that Triton's interpreter does not have
- ``backend``: the Triton driver of the emulated device
- ``fused``: kernels that fusion passes put into graphs where vLLM finds no Triton
- ``opaque``: wrappers in traced code, as operators that Dynamo need not look into
- ``stand_ins``: what runs in the place of slow kernels, with their results to the bit
- ``replacements``: the few wrappers that are not interpreted, each with its reason
"""

from __future__ import annotations

import os
from types import ModuleType

from emulated_npu.import_hooks import after_import
from emulated_npu.settings import EmulatorSettings
from emulated_npu.triton_interpreter import (
    backend,
    bfloat16,
    corrections,
    executor,
    fused,
    language,
    opaque,
    replacements,
    stand_ins,
)


def install(settings: EmulatorSettings) -> None:
    """Have Triton interpret kernels from now on, and vLLM find Triton if the settings say so."""
    # Read by triton.jit at decoration, so it must be set before the first kernel is defined.
    os.environ["TRITON_INTERPRET"] = "1"
    language.install_extension_module()
    after_import("triton._utils", language.lift_power_of_two_rule)
    after_import("triton.language.semantic", language.lift_arange_rule)
    after_import("triton.runtime.interpreter", executor.install)
    after_import("triton.runtime.interpreter", corrections.install)
    after_import("triton.runtime.interpreter", bfloat16.install)
    after_import("triton.runtime.interpreter", stand_ins.install)
    replacements.install()
    opaque.install()
    if settings.has_triton:
        after_import("triton.backends", backend.install)
    else:
        after_import("vllm.triton_utils", _give_triton_to_unconditional_kernels)
        after_import("triton.runtime.autotuner", backend.time_without_driver)
        fused.install()


def _give_triton_to_unconditional_kernels(triton_utils: ModuleType) -> None:
    """Replace vLLM's placeholder by Triton itself; ``HAS_TRITON`` stays False."""
    import triton
    import triton.language
    import triton.language.extra.libdevice

    triton_utils.triton = triton  # type: ignore[attr-defined]
    triton_utils.tl = triton.language  # type: ignore[attr-defined]
    triton_utils.tldevice = triton.language.extra.libdevice  # type: ignore[attr-defined]
