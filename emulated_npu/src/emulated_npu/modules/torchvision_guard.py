# SPDX-License-Identifier: Apache-2.0
"""Lets modules that import torchvision load without it.

vllm-ascend's worker imports the classes of Qwen's vision models, text-only model or not, and their
image processor in transformers imports ``torchvision.transforms.v2.functional``. A torchvision from
PyPI cannot load beside a CPU build of torch, so it is not required: without it, that import gives
a stand-in, whose every name raises NotImplementedError when used.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from types import ModuleType
from typing import Any, NoReturn

from emulated_npu.import_hooks import after_import

STAND_INS = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)


class _Missing:
    """A name of torchvision: can be imported and named in annotations, not used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _refuse(self) -> NoReturn:
        raise NotImplementedError(
            f"{self._name} was used, but torchvision is not installed; the emulated NPU serves "
            "text models. Install a torchvision that fits this torch for anything else."
        )

    def __call__(self, *_args: object, **_kwargs: object) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()


def install() -> None:
    """Offer the stand-ins once transformers was imported, unless there is a torchvision."""
    after_import("transformers.utils.import_utils", _install_beside_transformers)


def _install_beside_transformers(import_utils: ModuleType) -> None:
    if importlib.util.find_spec("torchvision") is not None:
        return
    # Cached by transformers: it goes on to know that there is no torchvision, and takes its own
    # ways without it wherever it asks before it imports.
    import_utils.is_torchvision_available()
    for name in STAND_INS:
        _offer(name)


def _offer(name: str) -> None:
    module = ModuleType(name, "Stand-in for the missing torchvision: names fail when used.")
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
    module.__path__ = []

    def missing_name(attribute: str) -> _Missing:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return _Missing(f"{name}.{attribute}")

    module.__getattr__ = missing_name  # type: ignore[method-assign]
    sys.modules[name] = module
    parent_name, _, child_name = name.rpartition(".")
    if parent_name:
        setattr(sys.modules[parent_name], child_name, module)
