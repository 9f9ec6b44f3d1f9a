# SPDX-License-Identifier: Apache-2.0
"""Which chips the AscendC kernels are for, and by which names vllm-ascend and CANN call them.

Standard library only: ``setup.py`` loads this file before anything is installed.

Sources: ``setup.py`` of vllm-ascend 0.23.0 (short names, what ``npu-smi`` is asked), and of CANN
9.1 ``host_config.cmake`` (which names make which build) and ``ascendc_runtime.cpp`` (a library for
any of the served chips runs on all of them).
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence

VARIABLE = "SOC_VERSION"

A2 = (
    "ascend910b1", "ascend910b2", "ascend910b2c", "ascend910b3", "ascend910b4", "ascend910b4-1",
)  # fmt: skip
A3 = (
    "ascend910_9391", "ascend910_9381", "ascend910_9372", "ascend910_9392", "ascend910_9382",
    "ascend910_9362",
)  # fmt: skip
SERVED = (*A2, *A3)
"""CANN's names of the chips that the kernels are for; those of one kind of build."""

SHORT_NAMES = {"910b": "ascend910b1", "910c": "ascend910_9392"}

FIRST_910 = ("ascend910a", "ascend910proa", "ascend910b", "ascend910prob", "ascend910premiuma")
"""The first Ascend 910. Of ``ascend910b`` CANN makes a build for it, not for the 910B."""

WITHOUT_KERNELS = ("ascend310", "310p", "ascend950")
"""How the names of other chips begin that vllm-ascend runs on; ops are torch references there."""

BUILD_COMMAND = "pip install --force-reinstall --no-build-isolation --no-deps ."
"""In the sources of mkv_ascend, on an Ascend host."""

POSSIBLE = (
    f"Possible are 910b or {', '.join(A2)} (Atlas A2), and 910c or {', '.join(A3)} (Atlas A3); "
    "`npu-smi info` says which it is"
)

Run = Callable[[Sequence[str]], str]


class ChipError(ValueError):
    """No chip to build for: the name is wrong, or there is none."""


def chip_to_build_for(
    environment: Mapping[str, str], run: Run | None = None
) -> tuple[str, str | None]:
    """The chip by its name in the environment or from ``npu-smi``.

    Returns:
        The name in lower case, and the name to build the kernels for; None where there are no
        kernels for this chip.

    Raises:
        ChipError: with what is possible and what to change.
    """
    asked = environment.get(VARIABLE, "").strip()
    if asked:
        return asked.lower(), build_name(asked, f"{VARIABLE} is {asked}")
    found = ask_npu_smi(run or _output)
    return found, build_name(found, f"npu-smi names the chip {found}")


def build_name(name: str, origin: str) -> str | None:
    """CANN's name to build the kernels for; None for a chip without kernels.

    Raises:
        ChipError: it begins with ``origin``, a sentence that says where the name is from.
    """
    lower = name.lower()
    if lower in SERVED:
        return lower
    if lower in SHORT_NAMES:
        return SHORT_NAMES[lower]
    if lower.startswith(WITHOUT_KERNELS):
        return None
    if lower in FIRST_910:
        raise ChipError(
            f"{origin}, of which CANN makes a build for the first Ascend 910 (910A), which neither "
            f"vllm-ascend nor these kernels are for. {POSSIBLE}. Set {VARIABLE} to one of them."
        )
    raise ChipError(
        f"{origin}, which is no chip's name. {POSSIBLE}. Set {VARIABLE} to one of them."
    )


def ask_npu_smi(run: Run) -> str:
    """The name of the first NPU in CANN's form, for instance ``ascend910b3``.

    Raises:
        ChipError: there is no ``npu-smi``, or it does not say.
    """
    way = f"Set {VARIABLE}. {POSSIBLE}."
    try:
        npu = _fields(run(("npu-smi", "info", "-l"))).get("NPU ID", "")
        command = ("npu-smi", "info", "-t", "board", "-i", npu)
        # Of an A2 or A3 the board names no chip, its first chip does.
        board = _fields(run(command))
        if "Chip Name" not in board:
            board = _fields(run((*command, "-c", "0")))
    except FileNotFoundError as error:
        raise ChipError(f"{VARIABLE} is not set and there is no npu-smi to ask. {way}") from error
    except (subprocess.SubprocessError, OSError) as error:
        raise ChipError(f"{VARIABLE} is not set and npu-smi fails: {error}. {way}") from error
    chip, kind, npu_name = (board.get(key, "") for key in ("Chip Name", "Chip Type", "NPU Name"))
    if "a2g3" in chip.lower():
        return "ascend910b1"
    if kind:
        return f"{kind}{chip}".lower()
    if chip and npu_name:
        return f"{chip}_{npu_name}".lower()
    raise ChipError(f"{VARIABLE} is not set and npu-smi names no chip: {board}. {way}")


def runs_on(built_for: str, chip: str) -> bool:
    """Whether kernels built for one name run on a chip, as the driver names it."""
    return built_for.lower() in SERVED and chip.lower() in SERVED


def why_not_launched(built_for: str, chip: str, problem: str) -> str | None:
    """Why kernels that are built cannot be launched, and what to do; None when they can.

    Args:
        built_for: the name that they were built for.
        chip: the present chip as the driver names it; empty when it names none.
        problem: what CANN's launch code found wrong when it was loaded; empty when nothing.
    """
    if not chip:
        return (
            f"they were built for {built_for}, and the driver names no chip. Look at `npu-smi info`"
        )
    facts = f"they were built for {built_for}, and this NPU is {chip}"
    if chip.lower() not in SERVED:
        return f"{facts}, for which there are none. Move to a 910B or 910C"
    if runs_on(built_for, chip) and not problem:
        return None
    facts += f"; {problem}" if problem else ""
    return (
        f"{facts}. Build them again, in the sources of mkv_ascend: "
        f"`{VARIABLE}={chip.lower()} {BUILD_COMMAND}`"
    )


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout


def _fields(text: str) -> dict[str, str]:
    """The ``key : value`` lines; of a key that comes more than once the first one."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(" ".join(key.split()), value.strip())
    return fields
