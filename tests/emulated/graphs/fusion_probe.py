# SPDX-License-Identifier: Apache-2.0
"""In a process of its own: which operators vllm-ascend has, or a call of one of them."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import Any

import torch

NAMESPACES = ("npu", "_C_ascend", "vllm")
SHARED_CODE = "device/device_op.py"
"""Where passes call functions whose operators differ by device; its class for A2 comes first."""


def names_in(source: str) -> set[str]:
    """``namespace.name`` of all ``torch.ops.namespace.name`` in a source text."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            parts = ast.unparse(node).split(".")
            if parts[:2] == ["torch", "ops"] and len(parts) == 4 and parts[2] in NAMESPACES:
                found.add(".".join(parts[2:]))
    return found


def called_of_the_device(sources: list[str]) -> set[str]:
    """Methods of ``DeviceOperator`` that any of the sources calls."""
    called = set()
    for source in sources:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "DeviceOperator":
                called.add(node.attr)
    return called


def operators_of_passes() -> set[str]:
    """What vllm-ascend's passes name, in their own code and by way of ``DeviceOperator``."""
    package = Path(importlib.import_module("vllm_ascend").__file__).parent
    folder = package / "compilation"
    sources = [path.read_text() for path in sorted(folder.rglob("*.py"))]
    names = set().union(*map(names_in, sources))
    called = called_of_the_device(sources)
    for node in ast.walk(ast.parse((package / SHARED_CODE).read_text())):
        if isinstance(node, ast.ClassDef) and node.name == "BaseDeviceAdaptor":
            for method in node.body:
                if isinstance(method, ast.FunctionDef) and method.name in called:
                    names |= names_in(ast.unparse(method))
    return names


def missing(names: set[str]) -> list[str]:
    """Those that torch does not have, that only refuse, or that cannot be traced."""
    import torch_npu

    from emulated_npu.operators import registry

    kernels = registry.namespace_functions("_C_ascend")
    found = []
    for full in sorted(names):
        namespace, name = full.split(".")
        operator = getattr(getattr(torch.ops, namespace), name, None)
        there = operator is not None and isinstance(operator, torch._ops.OpOverloadPacket)
        if namespace == "npu":
            there = there and getattr(torch_npu, name) is operator
        if namespace == "_C_ascend":
            there = there and name in kernels
        if there and namespace != "vllm":
            entry = torch._library.simple_registry.singleton.find(f"{namespace}::{name}")
            there = entry.fake_impl.kernel is not None
        if not there:
            found.append(full)
    return found


def call(request: dict[str, Any]) -> dict[str, Any]:
    def tensor(values: Any) -> torch.Tensor:
        return torch.tensor(values).bfloat16().npu()

    if request["task"] == "muls_add":
        total = torch.ops.vllm.muls_add(
            tensor(request["x"]), tensor(request["y"]), request["scale"]
        )
        return {"sum": total.tolist()}
    q_size, kv_size, head = request["sizes"]
    q, k, v = torch.ops.vllm.qkv_rmsnorm_rope(
        input=tensor(request["qkv"]),
        cos_sin_cache=tensor(request["table"]),
        positions=torch.tensor(request["positions"]).npu(),
        q_weight=tensor(request["weights"][0]),
        k_weight=tensor(request["weights"][1]),
        q_hidden_size=q_size,
        kv_hidden_size=kv_size,
        head_dim=head,
        eps=1e-6,
    )
    return {"q": q.tolist(), "k": k.tolist(), "v": v.tolist()}


def fusion(request: dict[str, Any]) -> dict[str, Any]:
    """Names of operators and those that are missing, or what a call gives, by ``task``."""
    from vllm.platforms import current_platform

    current_platform.import_kernels()
    importlib.import_module("vllm_ascend.utils").register_ascend_customop()
    if request["task"] == "names":
        names = operators_of_passes()
        return {"names": sorted(names), "missing": missing(names)}
    return call(request)
