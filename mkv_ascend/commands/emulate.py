# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend emulate -- command``: run a command, and its children, on the emulated NPU.

The emulated NPU is a distribution of its own; other commands use it where it is there.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Mapping, Sequence

from mkv_ascend import envs

HELP = "run a command on emulated NPUs"
HOW_TO_INSTALL = (
    "the emulated NPU is not installed: run `make setup` in a clone of mkv_ascend, or "
    "`pip install ./emulated_npu` there"
)
EXIT_REFUSED = 2


class EmulatorError(RuntimeError):
    """No process can be started on the emulated NPU here; the text says why."""


def is_installed() -> bool:
    """Whether ``emulated_npu`` can be imported."""
    found = importlib.util.find_spec("emulated_npu")
    # A folder of that name without __init__.py, such as a clone's, is no package.
    return found is not None and found.origin is not None


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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of ``mkv-ascend emulate``: those of the emulated NPU's own command."""
    if is_installed():
        from emulated_npu import command

        command.add_arguments(parser)
        return
    parser.description = f"Runs a command on emulated Ascend NPUs. Here {HOW_TO_INSTALL}."
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- command")


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the command; returns only when that is refused."""
    problems = envs.unknown_variables() if is_installed() else [HOW_TO_INSTALL]
    if problems:
        print(f"mkv-ascend emulate: {'; '.join(problems)}", file=sys.stderr)
        return EXIT_REFUSED
    from emulated_npu import command

    return command.run(arguments, "mkv-ascend emulate")
