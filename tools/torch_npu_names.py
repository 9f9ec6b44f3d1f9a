# SPDX-License-Identifier: Apache-2.0
"""Names of torch_npu that adapters use, looked up in the stand-in of the emulated NPU.

torch_npu's sources come with neither vLLM nor vllm-ascend, and its wheel needs CANN. The stand-in
offers the names of one version of it: operators by their documentation, and what lies in
``torch.npu``. Of the stand-in nothing is imported but the list of its operators.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import foreign_names
from mkv_ascend.adapters.fingerprints import DYNAMIC, HostSource

RUNTIME = "emulated_npu.device.npu"
"""The stand-in's module for ``torch.npu``."""
ROOT = "emulated_npu.modules.torch_npu_root"
"""The stand-in's module that sets what else ``torch_npu`` has."""
CHAIN = re.compile(r"(?:torch_npu|torch(?=\.npu\.)|torch\.ops(?=\._C_ascend\.))\.([a-zA-Z_][\w.]*)")


def used(files: Iterable[Path]) -> list[str]:
    """What these files read of torch_npu, as ``torch_npu:npu.Stream`` or ``torch_npu:npu_x``.

    Operators of vllm-ascend that are read from ``torch.ops`` are ``torch_npu:_C_ascend.npu_x``.
    """
    return sorted({name for path in files for name in _names(foreign_names.tree_of(path))})


def _names(tree: ast.Module) -> Iterator[str]:
    inner = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node not in inner:
            chain = CHAIN.fullmatch(ast.unparse(node))
            if chain is not None and not chain[1].startswith("__"):
                yield f"torch_npu:{chain[1]}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch_npu"):
            module = (node.module or "").partition(".")[2]
            yield from (
                f"torch_npu:{module}.{alias.name}".replace(":.", ":") for alias in node.names
            )


def is_offered(name: str) -> bool:
    """Whether the stand-in has a name that ``used`` gives."""
    name = name.partition(":")[2]
    first, _, rest = name.partition(".")
    if first == "npu" and rest:
        found = _stand_in().find(f"{RUNTIME}:{rest}")
        # The module's __getattr__ only says of any other name that it is missing.
        return found is not None and getattr(found.node, "name", "") != DYNAMIC
    return name in _operators() or name in _set_by_root()


def is_at_hand() -> bool:
    """Whether the emulated NPU is installed here."""
    return importlib.util.find_spec("emulated_npu") is not None


@functools.cache
def _stand_in() -> HostSource:
    spec = importlib.util.find_spec("emulated_npu")
    assert spec is not None
    return HostSource({"emulated_npu": Path((spec.submodule_search_locations or [""])[0]).parent})


@functools.cache
def _operators() -> frozenset[str]:
    from emulated_npu.operators import registry

    registry.load_all()
    return frozenset(registry.OPERATORS)


@functools.cache
def _set_by_root() -> frozenset[str]:
    tree = _stand_in().tree_of(ROOT)
    assert tree is not None
    targets = [t for node in ast.walk(tree) if isinstance(node, ast.Assign) for t in node.targets]
    chains = (CHAIN.fullmatch(ast.unparse(target)) for target in targets)
    return frozenset(chain[1] for chain in chains if chain is not None)
