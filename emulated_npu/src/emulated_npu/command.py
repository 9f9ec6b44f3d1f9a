# SPDX-License-Identifier: Apache-2.0
"""The command ``emulated-npu -- command``: run a command, and its children, on emulated NPUs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from emulated_npu import variables
from emulated_npu.host_check import RealAscendError
from emulated_npu.launch import EmulatedProcess, LaunchError
from emulated_npu.settings import EmulatorSettings
from emulated_npu.variables import Value, Variable, VariableError

__all__ = ["add_arguments", "chosen_settings", "main", "run", "without_separator"]

DESCRIPTION = """\
Runs a command, and every process it starts, on emulated Ascend NPUs: devices named npu whose memory
is host memory and whose operators are CPU kernels, under the unmodified vLLM and vllm-ascend.
It shows what is computed, never how fast. Refused where a real torch_npu or CANN is installed.
"""

EXAMPLES = """\
examples:
  {program} -- vllm serve /path/to/model --enforce-eager
  {program} --devices 2 --memory 1GiB --strict -- python my_script.py
  {program} --strict --float32-compute -- pytest tests/emulated
  {program} --counters -- python my_script.py

Each option has an environment variable of its own; the option wins. What is not given comes from
the variable, then from the default.
"""

EXIT_REFUSED = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of the command on ``parser``."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES.format(program=parser.prog)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add_value(parser, "--devices", variables.DEVICES, "N", "number of devices")
    _add_value(parser, "--memory", variables.MEMORY, "SIZE", "memory of each device")
    _add_switch(parser, "--strict", variables.STRICT, "refuse what operators do not document")
    _add_switch(
        parser,
        "--float32-compute",
        variables.FLOAT32_COMPUTE,
        "in strict mode, accept float32 where float16 and bfloat16 are documented",
    )
    _add_switch(
        parser, "--triton", variables.TRITON, "let vLLM find Triton, run by its interpreter"
    )
    _add_switch(parser, "--counters", variables.COUNTERS, "print exact counters at exit")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- command", help="what to run"
    )


def _add_value(
    parser: argparse.ArgumentParser,
    option: str,
    variable: Variable[int],
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
    parser: argparse.ArgumentParser, option: str, variable: Variable[bool], help_text: str
) -> None:
    default = "on" if variable.default else "off"
    parser.add_argument(
        option, action=argparse.BooleanOptionalAction, help=f"{help_text} (default: {default})"
    )


def chosen_settings(arguments: argparse.Namespace) -> EmulatorSettings:
    """The settings that the options, else the variables, ask for. Raises VariableError."""
    return EmulatorSettings(
        devices=_chosen(arguments.devices, variables.DEVICES),
        memory_bytes=_chosen(arguments.memory, variables.MEMORY),
        strict=_chosen(arguments.strict, variables.STRICT),
        float32_compute=_chosen(arguments.float32_compute, variables.FLOAT32_COMPUTE),
        has_triton=_chosen(arguments.triton, variables.TRITON),
        report_counters=_chosen(arguments.counters, variables.COUNTERS),
    )


def _chosen(option: Value | None, variable: Variable[Value]) -> Value:
    return variable.get() if option is None else option


def without_separator(command: list[str]) -> tuple[str, ...]:
    """The command behind ``--``."""
    return tuple(command[1:] if command[:1] == ["--"] else command)


def run(arguments: argparse.Namespace, program: str) -> int:
    """Replace this process by the command; returns only when that is refused.

    Args:
        program: what the user called, for messages.
    """
    try:
        command = without_separator(arguments.command)
        EmulatedProcess(command, chosen_settings(arguments)).execute()
    except (RealAscendError, LaunchError, VariableError) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_REFUSED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="emulated-npu")
    add_arguments(parser)
    return run(parser.parse_args(arguments), parser.prog)
