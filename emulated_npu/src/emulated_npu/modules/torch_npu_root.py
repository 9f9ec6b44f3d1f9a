# SPDX-License-Identifier: Apache-2.0
"""What `import torch_npu` does and holds in an emulated process."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from types import ModuleType
from typing import Any

from emulated_npu.host_check import refuse_real_ascend
from emulated_npu.modules import optional_packages, torchvision_guard
from emulated_npu.operators import registry, traced
from emulated_npu.settings import EmulatorSettings, settings

TORCH_NPU_VERSION = "2.10.0"
"""Version of torch_npu whose names the emulator offers (dist-info in ``site`` says the same)."""

SUBMODULES = {
    "torch_npu.npu": "emulated_npu.device.npu",
    "torch_npu._C": "emulated_npu.modules.torch_npu_c",
    "torch_npu._C._distributed_c10d": "emulated_npu.modules.torch_npu_c_distributed",
    "torch_npu._inductor": "emulated_npu.modules.inductor",
    "torch_npu.multiprocessing": "emulated_npu.modules.multiprocessing",
    "torch_npu.multiprocessing.reductions": "emulated_npu.modules.reductions",
    "torch_npu.op_plugin": "emulated_npu.modules.op_plugin",
    "torch_npu.op_plugin.atb": "emulated_npu.modules.op_plugin_atb",
    "torch_npu.op_plugin.atb._atb_ops": "emulated_npu.modules.atb_ops",
    "torch_npu.profiler": "emulated_npu.modules.profiler",
    "torch_npu.profiler.dynamic_profile": "emulated_npu.modules.dynamic_profile",
}
"""Importable name -> module that holds its content. Parents stand before their children."""

COMPILER_MODULES = {
    "npugraph_ex": "emulated_npu.modules.npugraph_ex",
    "npugraph_ex.configs": "emulated_npu.modules.npugraph_ex_configs",
    "npugraph_ex.configs.compiler_config": ("emulated_npu.modules.npugraph_ex_compiler_config"),
    "npugraph_ex.npu_fx_compiler": "emulated_npu.modules.npugraph_ex_fx_compiler",
}
"""The same for the package that comes with torch_npu and compiles graphs."""


DTYPE_CODES = {
    "hifloat8": 290,
    "float8_e8m0fnu": 293,
    "float4_e2m1fn_x2": 296,
}
"""Dtypes that PyTorch 2.10 lacks: torch_npu names each by a number, CANN's own plus 256.

vllm-ascend evaluates some at import; no operator here takes one."""


def install(torch_npu: ModuleType) -> None:
    """Turn this process into an emulated one and fill the module ``torch_npu``.

    Raises RealAscendError beside a real torch_npu or CANN, and an error with the build command if
    the native extension is missing.
    """
    refuse_real_ascend()
    torch_npu.__version__ = TORCH_NPU_VERSION  # type: ignore[attr-defined]
    importlib.import_module("emulated_npu.device").install()
    for name, content in {**SUBMODULES, **COMPILER_MODULES}.items():
        _attach_submodule(name, importlib.import_module(content))
    _install_operators(torch_npu)
    torch_npu.emulated_memory_bytes = settings().memory_bytes  # type: ignore[attr-defined]
    torch_npu.emulated_extra_dtypes = _extra_dtypes(settings())  # type: ignore[attr-defined]
    importlib.import_module("emulated_npu.custom_operators").install()
    optional_packages.install()
    importlib.import_module("emulated_npu.collectives").install()
    importlib.import_module("emulated_npu.modules.reductions").install()
    importlib.import_module("emulated_npu.triton_interpreter").install(settings())
    torchvision_guard.install()
    _announce_in_this_and_forked_processes()


def _extra_dtypes(current: EmulatorSettings) -> frozenset[str]:
    """Dtypes that the operators accept here beyond those that CANN documents.

    A program that knows the documented dtypes asks for this name to know what more it may use.
    """
    relaxed = current.float32_compute or not current.strict
    return frozenset({"float32"}) if relaxed else frozenset()


def _attach_submodule(name: str, content: ModuleType) -> None:
    parent_name, _, child_name = name.rpartition(".")
    sys.modules[name] = content
    if parent_name:
        setattr(sys.modules[parent_name], child_name, content)


def _install_operators(torch_npu: ModuleType) -> None:
    registry.load_all()
    for name, function in registry.namespace_functions().items():
        setattr(torch_npu, name, function)
    for name, traced_operator in traced.install().items():
        setattr(torch_npu, name, traced_operator)
    torch_npu.atb = _operator_namespace("atb")  # type: ignore[attr-defined]
    formats = importlib.import_module("emulated_npu.modules.formats")
    torch_npu.Format = formats.Format  # type: ignore[attr-defined]
    for name, code in DTYPE_CODES.items():
        setattr(torch_npu, name, code)


def _operator_namespace(namespace: str) -> ModuleType:
    """A module such as ``torch_npu.atb``: its registered operators, the others missing by name."""
    module = ModuleType(f"torch_npu.{namespace}")
    for name, function in registry.namespace_functions(namespace).items():
        setattr(module, name, function)

    def missing_operator(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return registry.missing(name, namespace)

    module.__getattr__ = missing_operator  # type: ignore[method-assign]
    return module


def missing_attribute(name: str) -> Any:
    """``torch_npu.<name>`` for what the emulator does not have: an operator fails when called."""
    if name.startswith(("npu_", "_npu_")):
        return registry.missing(name)
    raise AttributeError(f"emulated NPU has no torch_npu.{name}")


def _announce_in_this_and_forked_processes() -> None:
    _announce(settings())
    os.register_at_fork(after_in_child=lambda: _announce(settings()))


def _announce(current: EmulatorSettings) -> None:
    mode = "strict" if current.strict else "not strict"
    if current.strict and current.float32_compute:
        mode += " but for float32 compute"
    _stderr_logger().info(
        "emulated NPU: %d devices of %.1f GiB, %s; not a real Ascend device (process %d)",
        current.devices,
        current.memory_bytes / 2**30,
        mode,
        os.getpid(),
    )


def _stderr_logger() -> logging.Logger:
    """A logger that prints whatever the program's own logging configuration is, or lacks."""
    logger = logging.getLogger("emulated_npu.announcement")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger
