# SPDX-License-Identifier: Apache-2.0
"""Entry points, and how the plugin takes vllm-ascend's seat.

vLLM allows one out-of-tree platform. With vllm-ascend and this package installed there are two,
and vLLM would refuse both. What decides is the order of three steps inside vLLM 0.23.0:

1. it *loads* (imports) every platform entry point that ``VLLM_PLUGINS`` allows,
2. it *calls* each loaded function, swallowing every ``Exception``,
3. it calls the single function that answered, once more.

So importing this module (step 1) makes ``vllm_ascend.register`` answer None, and our own
function answers in its place (steps 2 and 3). The function's *code* is exchanged rather than the
module attribute, because vLLM may already hold the function object when we are imported: that
makes both orders of discovery equal. When ``VLLM_PLUGINS`` names ``ascend`` but not us, this
module is never imported and stock vllm-ascend runs; when this package is uninstalled, nothing
of it remains. docs/plugin.md lists the alternatives that were tried.

Rules that keep failures loud:

* Importing this module must not raise: vLLM would log that and go on with stock vllm-ascend.
  Whatever goes wrong is remembered and raised by ``register_platform`` as ``SystemExit``.
* Nothing but vLLM's plugin loader may import this module: importing it has the effect above.
* ``register_general`` runs in every process and checks that the seat was really taken.
"""

from __future__ import annotations

import importlib.util
import os
from importlib.metadata import entry_points
from types import ModuleType

from mkv_ascend.plugin.versions import StartUpRefused, check_versions, installed_version

PLATFORM = "mkv_ascend.plugin.platform.MkvPlatform"
PLATFORM_GROUP = "vllm.platform_plugins"
GENERAL_GROUP = "vllm.general_plugins"

_failure_to_take_the_seat: str | None = None


def _stand_aside() -> None:
    """What ``vllm_ascend.register`` answers while this plugin holds its seat."""
    return None


def _take_the_seat(vllm_ascend: ModuleType) -> None:
    register = vllm_ascend.register
    if not hasattr(register, "__code__") or register.__code__.co_freevars:
        raise TypeError("vllm_ascend.register is not a plain function any more")
    register.__code__ = _stand_aside.__code__


def _take_the_seat_or_remember_why_not() -> str | None:
    if importlib.util.find_spec("vllm_ascend") is None:
        return None
    try:
        import vllm_ascend

        _take_the_seat(vllm_ascend)
    except Exception as error:
        return f"could not take vllm-ascend's place: {type(error).__name__}: {error}"
    return None


def register_platform() -> str | None:
    """The ``vllm.platform_plugins`` entry point: the platform's qualified class name.

    Returns:
        None when vllm-ascend is not installed (this package then changes nothing), otherwise
        the name of ``MkvPlatform``.

    Raises:
        StartUpRefused: the installed pair is not supported, the seat could not be taken, or
            there is neither an NPU nor the emulated one.
    """
    if installed_version("vllm-ascend") is None:
        return None
    check_versions()
    if _failure_to_take_the_seat is not None:
        raise StartUpRefused(_failure_to_take_the_seat)
    if importlib.util.find_spec("torch_npu") is None:
        raise StartUpRefused(
            "torch_npu is not installed, so there is no NPU to run on. On an Ascend host install "
            "torch-npu as vllm-ascend 0.23.0 documents; on any other machine start the same "
            "command on the emulated NPU: mkv-ascend emulate -- vllm serve ..."
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
    check_versions()
    from vllm.platforms import current_platform

    from mkv_ascend.plugin.platform import MkvPlatform

    if not isinstance(current_platform, MkvPlatform):
        active = f"{type(current_platform).__module__}.{type(current_platform).__qualname__}"
        raise StartUpRefused(
            f"the active platform is {active}, not {PLATFORM}, so the plugin would have no "
            "effect. Look for 'Failed to load plugin mkv_ascend' above; to run without this "
            "plugin, uninstall it or leave it out of VLLM_PLUGINS."
        )
    _warn_about_dropped_plugins()
    from vllm_ascend.utils import adapt_patch

    adapt_patch(is_global_patch=True)


def dropped_general_plugins(allowed: str | None) -> list[str]:
    """Names of vllm-ascend's general plugins that a ``VLLM_PLUGINS`` value leaves out.

    Args:
        allowed: the value of ``VLLM_PLUGINS``; None (unset) allows everything.
    """
    if allowed is None:
        return []
    names = allowed.split(",")
    return sorted(
        point.name
        for point in entry_points(group=GENERAL_GROUP)
        if point.value.partition(":")[0].partition(".")[0] == "vllm_ascend"
        and point.name not in names
    )


def _warn_about_dropped_plugins() -> None:
    allowed = os.environ.get("VLLM_PLUGINS")
    dropped = dropped_general_plugins(allowed)
    if not dropped:
        return
    from mkv_ascend.plugin.logging import get_logger

    get_logger(__name__).warning(
        "VLLM_PLUGINS=%s leaves out general plugins of vllm-ascend: %s. Their models, model "
        "loaders and KV connectors are not available. To have them, unset VLLM_PLUGINS or set "
        "VLLM_PLUGINS=%s",
        allowed,
        ", ".join(dropped),
        ",".join([*(name for name in (allowed or "").split(",") if name), *dropped]),
    )


_failure_to_take_the_seat = _take_the_seat_or_remember_why_not()
