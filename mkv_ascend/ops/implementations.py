# SPDX-License-Identifier: Apache-2.0
"""Which kernels serve the ops: native ones where they are built, else the torch reference.

Tensors on the emulated NPU are served by the kernels for CPU tensors: its memory is the host's, and
it hands every op that has no kernel of its own to the CPU's, as one launch.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mkv_ascend import envs
from mkv_ascend.ops import chips

REFERENCE, NATIVE, ASCENDC_HOST = envs.OPS_REFERENCE, envs.OPS_NATIVE, envs.OPS_ASCENDC_HOST

FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Library:
    """A library of kernels: its file in ``FOLDER``, and the namespace that it defines."""

    file: str
    namespace: str
    description: str


ON_NPU = "npu"
LIBRARIES = {
    NATIVE: Library("_kernels.so", "mkv_ascend_native", "built for the CPU"),
    ON_NPU: Library("_npu.so", "mkv_ascend_npu", "AscendC kernels"),
    ASCENDC_HOST: Library("_ascendc_host.so", "mkv_ascend_host", "AscendC kernels, checked"),
}

NPU = "npu"

# Below vLLM's logger, which is the one that is configured.
logger = logging.getLogger(f"vllm.{__name__}")


class KernelsMissingError(ImportError):
    """The native kernels were asked for, and are not built or do not fit the installed torch."""


class KernelsRefusedError(KernelsMissingError):
    """The kernels are built, and cannot run on this NPU: a launch would leave outputs unwritten."""


@dataclass(frozen=True)
class Choice:
    """What serves the ops on one kind of device, and why.

    Attributes:
        implementation: ``reference``, ``native`` or ``ascendc_host``.
        reason: why, for a person.
    """

    implementation: str
    reason: str

    def __str__(self) -> str:
        return f"{self.implementation} ({self.reason})"


@functools.lru_cache(maxsize=1)
def for_cpu() -> Choice:
    """What serves CPU tensors, and those of the emulated NPU.

    Raises:
        KernelsMissingError: ``MKV_ASCEND_OPS`` asks for kernels that there are not.
    """
    asked = envs.OPS.get()
    if asked == REFERENCE:
        return Choice(REFERENCE, f"{envs.OPS.name} asks for it")
    choice = _loaded(asked, "with `pip install --no-build-isolation -e .` (needs g++ and cmake)")
    if choice.implementation == asked:
        logger.info("Custom ops: %s", choice)
    else:
        logger.warning("Custom ops run as torch references: %s", choice.reason)
    return choice


@functools.lru_cache(maxsize=1)
def for_npu() -> Choice | None:
    """What serves tensors of an NPU; None where its tensors are handed to the kernels for CPUs.

    Raises:
        KernelsMissingError: ``MKV_ASCEND_OPS`` asks for kernels that there are not.
        KernelsRefusedError: there are kernels, and they are not for this NPU.
    """
    if torch._C._get_privateuse1_backend_name() != NPU:
        return None
    if getattr(torch.get_device_module(NPU), "runs_cpu_kernels", False):
        return None
    asked = envs.OPS.get()
    if asked == REFERENCE:
        return Choice(REFERENCE, f"{envs.OPS.name} asks for it")
    if asked == ASCENDC_HOST:
        raise KernelsMissingError(
            f"{envs.OPS.name} is {asked}, which is for the CPU and the emulated NPU. On an NPU the "
            f"same kernels run themselves: set it to {NATIVE}, or unset it."
        )
    build = f"with CANN, in the sources of mkv_ascend: `{chips.BUILD_COMMAND}`"
    choice = _loaded(ON_NPU, build)
    if choice.implementation == ON_NPU:
        return replace(choice, reason=f"{choice.reason}, {_built_for_this_npu()}")
    logger.warning("Custom ops run as torch references on the NPU: %s", choice.reason)
    return choice


def _loaded(library: str, build: str) -> Choice:
    """A library of kernels; the references where it is missing and no variable asks for one.

    Args:
        build: how it is built, for people.

    Raises:
        KernelsMissingError: ``MKV_ASCEND_OPS`` asks for kernels that there are not.
    """
    problem = _load_problem(library)
    if problem is None:
        return Choice(library, LIBRARIES[library].description)
    if envs.OPS.is_set():
        raise KernelsMissingError(
            f"{envs.OPS.name} is {envs.OPS.get()}, but {problem}. Build the kernels {build}. Or "
            "unset the variable to run the torch reference."
        )
    return Choice(REFERENCE, problem)


def kernel_of(implementation: str, name: str) -> Any:
    """A kernel of a library, as a function with the op's arguments.

    Raises:
        KernelsMissingError: the library is not built or does not load.
    """
    problem = _load_problem(implementation)
    if problem is not None:
        raise KernelsMissingError(problem)
    return getattr(getattr(torch.ops, LIBRARIES[implementation].namespace), name)


def install(implementation: str, name: str) -> None:
    """Give ``torch.ops.mkv_ascend.<name>`` its kernel from a loaded library, for its device."""
    getattr(torch.ops, LIBRARIES[implementation].namespace).install(name)


@functools.lru_cache(maxsize=len(LIBRARIES))
def _load_problem(implementation: str) -> str | None:
    """Load a library of kernels; why that is not possible, or None."""
    file = FOLDER / LIBRARIES[implementation].file
    if not file.exists():
        return f"the {implementation} kernels are not built: no file {file}"
    try:
        torch.ops.load_library(str(file))
    except OSError as error:
        return (
            f"{file} does not load into torch {torch.__version__}, it was probably built for "
            f"another torch: {error}"
        )
    return None


def _built_for_this_npu() -> str:
    """For which chip the loaded kernels were built, and which this is.

    Raises:
        KernelsRefusedError: the kernels would not be launched here. CANN's own launch code prints a
            line then, and goes on.
    """
    library = getattr(torch.ops, LIBRARIES[ON_NPU].namespace)
    built_for, chip = library.built_for(), library.chip()
    reason = chips.why_not_launched(built_for, chip, library.problem())
    if reason is not None:
        raise KernelsRefusedError(
            f"The AscendC kernels in {FOLDER / LIBRARIES[ON_NPU].file} cannot run: {reason}. Or "
            f"set {envs.OPS.name}={REFERENCE} to run the torch reference."
        )
    return f"built for {built_for}, on {chip}"
