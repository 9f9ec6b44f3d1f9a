# SPDX-License-Identifier: Apache-2.0
"""Entry points, and how the plugin claims the platform slot.

vLLM allows one out-of-tree platform. With vllm-ascend and this package installed there are two,
and vLLM would refuse both. The order of three steps inside vLLM 0.23.0 decides:

1. it *loads* (imports) every platform entry point that ``VLLM_PLUGINS`` allows,
2. it *calls* each loaded function, swallowing every ``Exception``,
3. it calls the single function that answered, once more.

So importing this module (step 1) makes ``vllm_ascend.register`` answer None
(``adapters/platform_slot.py``). Our own function answers in its place (steps 2 and 3), in either
order of discovery. When ``VLLM_PLUGINS`` names ``ascend`` but not us, this module is never imported
and stock vllm-ascend runs. Uninstalling this package leaves nothing behind. docs/plugin.md lists
the alternatives that were tried.

Rules that keep failures loud:

* Importing this module must not raise: vLLM would log that and go on with stock vllm-ascend.
  An error is remembered instead, and ``register_platform`` raises it as ``SystemExit``.
* Only vLLM's plugin loader may import this module, because importing it has the effect above.
* ``register_general`` runs in every process and checks that the slot was really claimed.
"""

from __future__ import annotations

import importlib.util
import os
import sys

from mkv_ascend import host_versions
from mkv_ascend.adapters import host_probe, platform_slot
from mkv_ascend.adapters.contract import PLATFORM
from mkv_ascend.adapters.installed import adapter
from mkv_ascend.adapters.refusal import StartUpRefused
from mkv_ascend.host_versions import dropped_general_plugins, installed_version
from mkv_ascend.plugin.versions import check_host, needs_no_device

PLATFORM_GROUP = "vllm.platform_plugins"
CLIENTS_PLATFORM = "vllm.platforms.cpu.CpuPlatform"
"""Of commands that compute nothing; vLLM's parser of options fails without any platform."""

_failure_to_claim: str | None = None


def _claim_or_remember_why_not() -> str | None:
    if importlib.util.find_spec("vllm_ascend") is None:
        return None
    try:
        platform_slot.claim()
    except Exception as error:
        return f"could not claim vLLM's platform slot: {type(error).__name__}: {error}"
    return None


def register_platform() -> str | None:
    """The ``vllm.platform_plugins`` entry point: the platform's qualified class name.

    Returns:
        None when vllm-ascend is not installed (this package then changes nothing), vLLM's own for
        CPUs when there is no NPU and the command is a client that needs none, otherwise the name
        of ``MkvPlatform``.

    Raises:
        StartUpRefused: the installed pair is not supported, the slot could not be claimed, or
            there is neither an NPU nor the emulated one.
    """
    if installed_version("vllm-ascend") is None:
        return None
    check_host()
    if _failure_to_claim is not None:
        raise StartUpRefused(_failure_to_claim)
    if importlib.util.find_spec("torch_npu") is None:
        if needs_no_device(sys.argv):
            # General plugins of vllm-ascend import torch_npu, and vLLM runs them for clients, too.
            os.environ["VLLM_PLUGINS"] = ""
            return CLIENTS_PLATFORM
        raise StartUpRefused(
            "torch_npu is not installed, so there is no NPU to run on. On an Ascend host install "
            f"torch-npu as {host_versions.vllm_ascend()} documents; on any other machine start the "
            "same command on the emulated NPU: mkv-ascend emulate -- vllm serve ..."
        )
    return PLATFORM


def register_general() -> None:
    """The ``vllm.general_plugins`` entry point: runs in every process of vLLM.

    Checks that vLLM really runs on MkvPlatform, warns about general plugins of vllm-ascend that
    ``VLLM_PLUGINS`` dropped, and applies vllm-ascend's process-wide patches, which otherwise
    only those general plugins apply in the engine core's process.

    Raises:
        StartUpRefused: vllm-ascend is installed, but another platform is active.
    """
    if installed_version("vllm-ascend") is None:
        return
    check_host()
    host = adapter()
    active = host_probe.active_platform()
    if active != PLATFORM:
        raise StartUpRefused(
            f"the active platform is {active}, not {PLATFORM}, so the plugin would have no "
            "effect. Look for 'Failed to load plugin mkv_ascend' above; to run without this "
            "plugin, uninstall it or leave it out of VLLM_PLUGINS."
        )
    _warn_about_dropped_plugins()
    host.start_process()


def _warn_about_dropped_plugins() -> None:
    allowed = os.environ.get("VLLM_PLUGINS")
    dropped = dropped_general_plugins(allowed)
    if not dropped:
        return
    from mkv_ascend.adapters.logging import get_logger

    get_logger(__name__).warning(
        "VLLM_PLUGINS=%s leaves out general plugins of vllm-ascend: %s. Their models, model "
        "loaders and KV connectors are not available. To have them, unset VLLM_PLUGINS or set "
        "VLLM_PLUGINS=%s",
        allowed,
        ", ".join(dropped),
        ",".join([*(name for name in (allowed or "").split(",") if name), *dropped]),
    )


_failure_to_claim = _claim_or_remember_why_not()
