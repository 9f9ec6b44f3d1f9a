# SPDX-License-Identifier: Apache-2.0
"""The installed vLLM and vllm-ascend by name, for messages. Standard library only.

Checks speak of the host that a command would run on; which ones are served, ``plugin/versions.py``
says.
"""

from __future__ import annotations

import ast
import functools
from importlib import metadata
from pathlib import Path

NOT_THERE = frozenset({"_PREVIOUSLY_SUPPORTED_MODELS", "_OOT_SUPPORTED_MODELS"})
"""Tables of vLLM's that name models which it had once, and which others have."""


def installed_version(distribution: str) -> str | None:
    """The installed version of a distribution, or None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def vllm() -> str:
    """``vLLM 0.23.0``; without a version where it is not installed."""
    return _named("vLLM", "vllm")


def vllm_ascend() -> str:
    """``vllm-ascend 0.23.0``; without a version where it is not installed."""
    return _named("vllm-ascend", "vllm-ascend")


def _named(name: str, distribution: str) -> str:
    version = installed_version(distribution)
    # vLLM built from source has a local part, for instance +empty.
    return name if version is None else f"{name} {version.partition('+')[0]}"


def runs_vllm(release: str) -> bool:
    """Whether the installed vLLM is of this release, such as 0.23."""
    return (installed_version("vllm") or "").startswith(f"{release}.")


@functools.cache
def model_classes() -> frozenset[str]:
    """Names of the model classes of the installed vLLM and vllm-ascend; empty: not known.

    Their sources are read, not run: importing vLLM takes seconds.
    """
    found = _registered(_source("vllm", "vllm/model_executor/models/registry.py"))
    return found and found | _registered(_source("vllm-ascend", "vllm_ascend/models/__init__.py"))


def _registered(source: str) -> frozenset[str]:
    """Keys of vLLM's tables of models, and what is registered by a call."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        names: list[ast.expr | None] = []
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            table = ast.unparse(node.targets[0])
            if table.endswith("_MODELS") and table not in NOT_THERE:
                names = node.value.keys
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("register_model"):
            names = [*node.args[:1]]
        found |= {str(one.value) for one in names if isinstance(one, ast.Constant)}
    return frozenset(found)


@functools.cache
def transformers_computes(architecture: str) -> bool:
    """Whether vLLM can run transformers' own class of this name where it has none."""
    where = _file("transformers", "transformers/models")
    for path in sorted(where.glob("*/modeling_*.py")) if where is not None else ():
        text = path.read_text(encoding="utf-8", errors="replace")
        if f"class {architecture}(" in text:
            return "_supports_attention_backend = True" in text
    return False


def _source(distribution: str, name: str) -> str:
    path = _file(distribution, name)
    return path.read_text(encoding="utf-8") if path is not None and path.is_file() else ""


def _file(distribution: str, name: str) -> Path | None:
    try:
        return Path(str(metadata.distribution(distribution).locate_file(name)))
    except metadata.PackageNotFoundError:
        return None
