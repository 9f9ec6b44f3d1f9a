# SPDX-License-Identifier: Apache-2.0
"""Define torch.ops._C_ascend and give its operators their kernels."""

from __future__ import annotations

import inspect
import logging
import sys
import types

import torch

from emulated_npu.custom_operators.schemas import (
    SchemaError,
    find_extension,
    parameter_names,
    read_schemas,
)
from emulated_npu.operators import registry, traced

NAMESPACE = "_C_ascend"
DISPLAY_NAMESPACE = f"torch.ops.{NAMESPACE}"
STUB_MODULE = "vllm_ascend.vllm_ascend_C"
# What vllm-ascend imports from the extension module, for its sleep mode.
STUB_FUNCTIONS = ("init_module", "python_create_and_map", "python_unmap_and_release")

logger = logging.getLogger(__name__)

# Kept for the life of the process: torch forgets the operators when the Library goes.
_library: torch.library.Library | None = None


def install() -> None:
    """Define all operators of the installed vllm-ascend; a second call does nothing.

    npu tensors reach a kernel through its wrapper in the registry, which counts the launch and runs
    the strict check. As in the real extension, only operators whose tensors are all on the host
    have a kernel for CPU tensors. Raises SchemaError if the wheel does not hold the schemas, or
    holds other ones than the kernels are written for.
    """
    global _library
    if _library is not None:
        return
    path = find_extension()
    if path is None:
        logger.info("vllm-ascend is not installed: %s is left undefined", DISPLAY_NAMESPACE)
        return
    schemas = read_schemas(path)
    registry.load_all()
    kernels = registry.namespace_functions(NAMESPACE)
    require_matching(kernels, schemas)
    library = torch.library.Library(NAMESPACE, "DEF")
    for name, schema in schemas.items():
        library.define(schema)
        if name in kernels:
            library.impl(name, kernels[name], _dispatch_key(kernels[name], schema))
        else:
            # Reached whatever the tensors are on, and by operators that take no tensor.
            refuse = registry.missing(name, DISPLAY_NAMESPACE)
            library.impl(name, refuse, "CompositeExplicitAutograd")
    traced.give_fakes(library, NAMESPACE)
    _library = library
    sys.modules[STUB_MODULE] = make_stub()


def require_matching(
    kernels: dict[str, registry.Operator[..., object]], schemas: dict[str, str]
) -> None:
    """Refuse kernels that the installed wheel has no schema for, or with other parameters."""
    unknown = sorted(set(kernels) - set(schemas))
    if unknown:
        raise SchemaError(
            f"the installed vllm-ascend has no operators {', '.join(unknown)} for which the "
            f"emulated NPU has kernels; it serves vllm-ascend 0.23.0"
        )
    for name, kernel in kernels.items():
        expected = parameter_names(schemas[name])
        got = list(inspect.signature(kernel.kernel).parameters)
        if got != expected:
            raise SchemaError(
                f"{DISPLAY_NAMESPACE}.{name} has the parameters {expected} in the installed "
                f"vllm-ascend, {got} in the emulated NPU, which serves vllm-ascend 0.23.0"
            )


def _dispatch_key(kernel: registry.Operator[..., object], schema: str) -> str:
    arguments = torch._C.parse_schema(schema).arguments
    tensors = {argument.name for argument in arguments if str(argument.type) == "Tensor"}
    return "CPU" if tensors and tensors <= set(kernel.entry.host_arguments) else "PrivateUse1"


def make_stub() -> types.ModuleType:
    """The module that stands for the extension, which links CANN and cannot be loaded."""
    stub = types.ModuleType(STUB_MODULE, "Stand-in of the emulated NPU; see emulated_npu.")
    for name in STUB_FUNCTIONS:
        setattr(stub, name, registry.missing(name, STUB_MODULE))
    return stub
