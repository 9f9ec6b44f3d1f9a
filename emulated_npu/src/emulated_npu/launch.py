# SPDX-License-Identifier: Apache-2.0
"""Starts a command as an emulated process: sets its environment and replaces this process by it.

All settings are environment variables, so that all children of the command (engine
core, workers) are emulated processes too. Standard library only, so that the command starts fast.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from emulated_npu import variables
from emulated_npu.host_check import SITE_FOLDER, refuse_real_ascend
from emulated_npu.settings import EmulatorSettings

PACKAGE_FOLDER = Path(__file__).resolve().parent
FA3_FOLDER = SITE_FOLDER / "optional_fa3"
"""Holds the stand-in for the library of flash_attention_3, and nothing else."""

BUILD_COMMAND = "pip install --no-build-isolation -e ./emulated_npu"

DEFAULTS = {
    "OMP_NUM_THREADS": "1",
    "TORCHINDUCTOR_AUTOGRAD_CACHE": "0",
    "TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING": "0",
    "VLLM_DISABLE_COMPILE_CACHE": "1",
    "VLLM_USE_AOT_COMPILE": "1",
}
"""Variables that a user may override.

More threads were 10 to 18 times slower on shared cores. PyTorch 2.13 keeps compiled graphs of
Inductor only and fails on those of vllm-ascend's compiler, which is written for an earlier one. It
also warns of operators that return their input, as some of vllm-ascend's do, and fails where the
variable CI is set. And what vLLM keeps of a compiled model for the next start cannot be run again
where the compiler is the stand-in of ``npugraph_ex``. By default vLLM compiles ahead of time; where
nothing is kept it does so only if it is told to. Its other way of tracing refuses the class of
DeepSeek-V2 in vllm-ascend 0.30.0rc2.
"""


class LaunchError(RuntimeError):
    """A command that cannot be run on the emulated NPU; the message is one line for the user."""


@dataclass(frozen=True)
class EmulatedProcess:
    """A command, with the emulated NPU that it is to see."""

    command: tuple[str, ...]
    settings: EmulatorSettings

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """Environment of the command: ``base`` and what makes a process an emulated one."""
        environment = {**DEFAULTS, **base, **settings_environment(self.settings)}
        with_fa3 = variables.FA3.get(base)
        environment["PYTHONPATH"] = _python_path(base.get("PYTHONPATH", ""), with_fa3)
        environment["PATH"] = _command_path(base.get("PATH", os.defpath))
        # Read by triton.jit when a kernel is defined, which may be before torch_npu is imported.
        environment["TRITON_INTERPRET"] = "1"
        # Autoload is how `import torch` finds the emulated device; a 0 inherited from elsewhere
        # would leave a process without it.
        environment.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
        return environment

    def check(self, environment: Mapping[str, str]) -> None:
        """Raise RealAscendError or LaunchError if the command cannot run emulated here."""
        refuse_real_ascend(environment)
        if not self.command:
            raise LaunchError("no command given; write it after --, as in: -- vllm serve MODEL")
        misspelt = variables.unknown_variables(environment)
        if misspelt:
            raise LaunchError("; ".join(misspelt))
        path = _command_path(environment.get("PATH", os.defpath))
        if shutil.which(self.command[0], path=path) is None:
            raise LaunchError(f"command not found: {self.command[0]}")
        require_native_extension()

    def execute(self, base: Mapping[str, str] | None = None) -> NoReturn:
        """Replace this process by the command, which so gets every signal sent to this process."""
        base = os.environ if base is None else base
        self.check(base)
        environment = self.environment(base)
        program = shutil.which(self.command[0], path=environment["PATH"])
        os.execve(program or self.command[0], self.command, environment)


def settings_environment(settings: EmulatorSettings) -> dict[str, str]:
    """The ``EMULATED_NPU_*`` variables that give a process these settings."""
    return {
        variables.DEVICES.name: variables.DEVICES.format(settings.devices),
        variables.MEMORY.name: variables.MEMORY.format(settings.memory_bytes),
        variables.STRICT.name: variables.STRICT.format(settings.strict),
        variables.FLOAT32_COMPUTE.name: variables.FLOAT32_COMPUTE.format(settings.float32_compute),
        variables.TRITON.name: variables.TRITON.format(settings.has_triton),
        variables.COUNTERS.name: variables.COUNTERS.format(settings.report_counters),
    }


def require_native_extension(package_folder: Path = PACKAGE_FOLDER) -> None:
    """Raise LaunchError with the build command if the device was not built."""
    library = package_folder / "_native.so"
    if not library.exists():
        raise LaunchError(
            f"the native part of the emulated NPU is not built (no file {library}); "
            f"build it in a clone of mkv_ascend: {BUILD_COMMAND}"
        )


def _command_path(inherited: str) -> str:
    """Programs installed beside this Python first: ``vllm`` of a virtual environment that is not
    activated must not be another one's, or missing."""
    return os.pathsep.join(
        dict.fromkeys([str(Path(sys.executable).parent), *inherited.split(os.pathsep)])
    )


def _python_path(inherited: str, with_fa3: bool) -> str:
    """The stand-in packages first, then what lets a child import this, then the inherited."""
    folders = [str(SITE_FOLDER)]
    if with_fa3:
        folders.append(str(FA3_FOLDER))
    parent = str(PACKAGE_FOLDER.parent)
    if parent not in site.getsitepackages():
        # A source tree that was not installed is importable only from the right folder.
        folders.append(parent)
    folders.extend(folder for folder in inherited.split(os.pathsep) if folder)
    return os.pathsep.join(dict.fromkeys(folders))
