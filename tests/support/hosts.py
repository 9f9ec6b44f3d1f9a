# SPDX-License-Identifier: Apache-2.0
"""The host of this environment: all that tests know of which vLLM and vllm-ascend are installed."""

from __future__ import annotations

from importlib import import_module, metadata
from importlib.util import find_spec
from typing import Any

import pytest

from mkv_ascend.adapters import installed as installed_host

ADAPTER = installed_host.adapter()
"""The adapter of the installed pair."""
NAME = ADAPTER.FINGERPRINTS.parent.name
"""The name of its folder, for instance ``vllm_ascend_0_23``."""
ROOMS = tuple(
    package
    for package in (
        ADAPTER.PACKAGE,
        f"{ADAPTER.PACKAGE}.common",
        "mkv_ascend.adapters.common",
    )
    if find_spec(package) is not None
)
"""Packages in which a module of the adapter may be, the host's own first."""
VLLM_ASCEND = metadata.version("vllm-ascend")
INDEXER_IS_A_LAYER = NAME == "vllm_ascend_0_30"
"""Whether sparse attention's indexer has a cache of its own, not one in the latent's spec."""
PLANS_DEEPSEEK_V4 = NAME == "vllm_ascend_0_23"
"""Whether DeepSeek-V4's caches are planned where no other model has layers beside them."""
A_BUFFER_FOR_EACH_LAYER = NAME == "vllm_ascend_0_30"
"""Whether vllm-ascend allocates for each layer what vLLM counts for one layer of each group."""
OWN_BUFFERS = (
    "there a layer has a buffer of its own, with keys and values of a block side by side; the "
    "caches of a plan lie otherwise"
)
"""Why caches of a plan are compared with vllm-ascend's on 0.23.0 alone."""


def path(name: str) -> str:
    """The qualified name of a module, for instance of ``runner`` or ``kv_cache.layer_facts``.

    It is the adapter's own module, or the one that adapters share.

    Raises:
        ModuleNotFoundError: neither has one of that name.
    """
    for package in ROOMS:
        room, _, _ = f"{package}.{name}".rpartition(".")
        if find_spec(room) is not None and find_spec(f"{package}.{name}") is not None:
            return f"{package}.{name}"
    raise ModuleNotFoundError(f"none of {ROOMS} has a module {name}")


def module(name: str) -> Any:
    """The module of that name; see ``path``."""
    return import_module(path(name))


def kv_cache_tensor(size: int, layers: list[str]) -> Any:
    """vLLM's ``KVCacheTensor`` of ``size`` bytes; with 0.30.0 it also says where pages begin."""
    from vllm.v1.kv_cache_interface import KVCacheTensor

    if NAME == "vllm_ascend_0_23":
        return KVCacheTensor(size, layers)
    return KVCacheTensor(size, layers, layer_stride=0, block_stride=0)


def kernel_block_sizes(sizes: list[int]) -> list[Any]:
    """A runner's ``kernel_block_sizes`` from one size for each KV group."""
    return [[size] for size in sizes] if NAME == "vllm_ascend_0_23" else sizes


def only_on(host: str, reason: str) -> pytest.MarkDecorator:
    """Mark a test that holds on one host alone.

    Args:
        host: name of its adapter's folder.
        reason: what differs between the hosts.
    """
    known = {adapter.FINGERPRINTS.parent.name for adapter in installed_host.adapters()}
    assert host in known, f"{host} is none of {sorted(known)}"
    return pytest.mark.skipif(host != NAME, reason=f"only on {host}: {reason}")


def skip_module_unless(host: str, reason: str) -> None:
    """Leave out the module of tests that calls this, on other hosts; see ``only_on``."""
    if host != NAME:
        pytest.skip(f"only on {host}: {reason}", allow_module_level=True)
