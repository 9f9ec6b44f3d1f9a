# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend emulate -- command``: run a command, and its children, on the emulated NPU."""

from __future__ import annotations

import argparse
import sys

from mkv_ascend import envs

HELP = "run a command on emulated NPUs"

DESCRIPTION = """\
Runs a command, and every process it starts, on emulated Ascend NPUs: devices named npu whose memory
is host memory and whose operators are CPU kernels, under the unmodified vLLM and vllm-ascend.
It shows what is computed, never how fast. Refused where a real torch_npu or CANN is installed.
"""

EXAMPLES = """\
examples:
  mkv-ascend emulate -- vllm serve /path/to/model --enforce-eager
  mkv-ascend emulate --devices 2 --memory 1GiB --strict -- python my_script.py
  mkv-ascend emulate --strict --float32-compute -- pytest tests/emulated
  mkv-ascend emulate --counters -- python my_script.py

Each option has an environment variable of its own; the option wins. What is not given comes from
the variable, then from the default.
"""

EXIT_REFUSED = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of ``mkv-ascend emulate``."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_value(parser, "--devices", envs.EMULATOR_DEVICES, "N", "number of devices")
    _add_value(parser, "--memory", envs.EMULATOR_MEMORY, "SIZE", "memory of each device")
    _add_switch(parser, "--strict", envs.EMULATOR_STRICT, "refuse what operators do not document")
    _add_switch(
        parser,
        "--float32-compute",
        envs.EMULATOR_FLOAT32_COMPUTE,
        "in strict mode, accept float32 where float16 and bfloat16 are documented",
    )
    _add_switch(
        parser, "--triton", envs.EMULATOR_TRITON, "let vLLM find Triton, run by its interpreter"
    )
    _add_switch(parser, "--counters", envs.EMULATOR_COUNTERS, "print exact counters at exit")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- command", help="what to run"
    )


def _add_value(
    parser: argparse.ArgumentParser,
    option: str,
    variable: envs.Variable[int],
    metavar: str,
    help_text: str,
) -> None:
    def parse(text: str) -> int:
        try:
            return variable.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}; allowed: {variable.allowed}") from error

    default = variable.format(variable.default)
    parser.add_argument(
        option, type=parse, metavar=metavar, help=f"{help_text} (default: {default})"
    )


def _add_switch(
    parser: argparse.ArgumentParser, option: str, variable: envs.Variable[bool], help_text: str
) -> None:
    default = "on" if variable.default else "off"
    parser.add_argument(
        option, action=argparse.BooleanOptionalAction, help=f"{help_text} (default: {default})"
    )


def run(arguments: argparse.Namespace) -> int:
    """Replace this process by the command; returns only when that is refused."""
    from mkv_ascend.emulator.host_check import RealAscendError
    from mkv_ascend.emulator.launch import EmulatedProcess, LaunchError
    from mkv_ascend.emulator.settings import EmulatorSettings

    try:
        settings = EmulatorSettings(
            devices=_chosen(arguments.devices, envs.EMULATOR_DEVICES),
            memory_bytes=_chosen(arguments.memory, envs.EMULATOR_MEMORY),
            strict=_chosen(arguments.strict, envs.EMULATOR_STRICT),
            float32_compute=_chosen(arguments.float32_compute, envs.EMULATOR_FLOAT32_COMPUTE),
            has_triton=_chosen(arguments.triton, envs.EMULATOR_TRITON),
            report_counters=_chosen(arguments.counters, envs.EMULATOR_COUNTERS),
        )
        EmulatedProcess(_without_separator(arguments.command), settings).execute()
    except (RealAscendError, LaunchError, envs.EnvironmentVariableError) as error:
        print(f"mkv-ascend emulate: {error}", file=sys.stderr)
        return EXIT_REFUSED


def _chosen(option: envs.Value | None, variable: envs.Variable[envs.Value]) -> envs.Value:
    return variable.get() if option is None else option


def _without_separator(command: list[str]) -> tuple[str, ...]:
    return tuple(command[1:] if command[:1] == ["--"] else command)
