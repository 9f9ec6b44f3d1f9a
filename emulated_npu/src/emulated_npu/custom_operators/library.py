# SPDX-License-Identifier: Apache-2.0
"""Define torch.ops._C_ascend and give its operators their kernels."""

from __future__ import annotations

import inspect
import logging
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from emulated_npu.custom_operators.schemas import (
    SchemaError,
    find_schemas,
    parameter_names,
    read_schemas,
)
from emulated_npu.device.memory_pools import plugged
from emulated_npu.operators import cache_strides, registry, traced

NAMESPACE = "_C_ascend"
DISPLAY_NAMESPACE = f"torch.ops.{NAMESPACE}"
SERVED = "It serves vllm-ascend 0.23.0 and 0.30.0rc2"
STUB_MODULE = "vllm_ascend.vllm_ascend_C"

logger = logging.getLogger(__name__)

# Kept for the life of the process: torch forgets the operators when the Library goes.
_library: torch.library.Library | None = None


def install() -> None:
    """Define all operators of the installed vllm-ascend; a second call does nothing.

    npu tensors reach a kernel through its wrapper in the registry, which counts the launch and runs
    the strict check. As in the real extension, only operators whose tensors are all on the host
    have a kernel for CPU tensors. Kernels of operators that this vllm-ascend does not have are
    left out: they are another version's. Raises SchemaError if there are no schemas, or if one asks
    for parameters that its kernel does not have.
    """
    global _library
    if _library is not None:
        return
    path = find_schemas()
    if path is None:
        logger.info("vllm-ascend is not installed: %s is left undefined", DISPLAY_NAMESPACE)
        return
    schemas = read_schemas(path)
    cache_strides.learn(schemas)
    registry.load_all()
    kernels = registry.namespace_functions(NAMESPACE)
    library = torch.library.Library(NAMESPACE, "DEF")
    for name, schema in schemas.items():
        library.define(schema)
        if name in kernels:
            kernel = kernel_for(kernels[name], schema)
            library.impl(name, kernel, _dispatch_key(kernels[name], schema))
        else:
            # Reached whatever the tensors are on, and by operators that take no tensor.
            refuse = registry.missing(name, DISPLAY_NAMESPACE)
            library.impl(name, refuse, "CompositeExplicitAutograd")
    traced.give_fakes(library, NAMESPACE, schemas)
    _library = library
    sys.modules[STUB_MODULE] = make_stub()


def kernel_for(kernel: registry.Operator[..., Any], schema: str) -> Callable[..., Any]:
    """What runs for an operator of this schema: the kernel, given its arguments by name.

    A kernel may have more parameters than a schema: those that other versions of vllm-ascend have,
    or have no more. They keep their defaults. Raises SchemaError if the schema has a parameter that
    the kernel does not know, or lacks one without a default.
    """
    expected = parameter_names(schema)
    parameters = inspect.signature(kernel.kernel).parameters
    if list(parameters) == expected:
        return kernel
    unset = [
        name
        for name, parameter in parameters.items()
        if name not in expected and parameter.default is inspect.Parameter.empty
    ]
    if unset or not set(expected) <= set(parameters):
        raise SchemaError(
            f"{DISPLAY_NAMESPACE}.{kernel.entry.name} has the parameters {expected} in the "
            f"installed vllm-ascend, {list(parameters)} in the emulated NPU. {SERVED}"
        )

    def run(*positional: Any, **named: Any) -> Any:
        return kernel(**dict(zip(expected, positional, strict=False)), **named)

    return run


def _dispatch_key(kernel: registry.Operator[..., object], schema: str) -> str:
    arguments = torch._C.parse_schema(schema).arguments
    tensors = {argument.name for argument in arguments if str(argument.type) == "Tensor"}
    return "CPU" if tensors and tensors <= set(kernel.entry.host_arguments) else "PrivateUse1"


def make_stub() -> types.ModuleType:
    """The module that stands for the extension, which links CANN and cannot be loaded.

    It has what vllm-ascend imports from the extension: the allocator of its sleep mode.
    """
    stub = types.ModuleType(STUB_MODULE, "Stand-in of the emulated NPU; see emulated_npu.")
    for name in ("init_module", "python_create_and_map", "python_unmap_and_release"):
        setattr(stub, name, getattr(plugged, name))
    return stub
