# SPDX-License-Identifier: Apache-2.0
"""The emulated NPU, a distribution of its own, for the commands that use it where it is there."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

HOW_TO_INSTALL = (
    "the emulated NPU is not installed: run `make setup` in a clone of mkv_ascend, or "
    "`pip install ./emulated_npu` there"
)


def is_installed() -> bool:
    """Whether ``emulated_npu`` can be imported."""
    found = importlib.util.find_spec("emulated_npu")
    # A folder of that name without __init__.py, such as a clone's, is no package.
    return found is not None and found.origin is not None


class EmulatorError(RuntimeError):
    """No process can be started on the emulated NPU here; the text says why."""


def environment_for(command: Sequence[str], variables: Mapping[str, str]) -> dict[str, str]:
    """The environment in which ``command`` runs on the emulated NPU that ``variables`` describe.

    Raises:
        EmulatorError: a variable is wrong, or there is a real NPU, or the native part is missing.
    """
    from emulated_npu.launch import EmulatedProcess, LaunchError
    from emulated_npu.settings import EmulatorSettings
    from emulated_npu.variables import VariableError

    try:
        process = EmulatedProcess(tuple(command), EmulatorSettings.from_environment(variables))
        process.check(variables)
    except (LaunchError, VariableError) as error:
        raise EmulatorError(str(error)) from error
    return process.environment(variables)
