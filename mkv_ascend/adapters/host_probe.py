# SPDX-License-Identifier: Apache-2.0
"""What commands ask of vLLM and torch_npu, whichever versions are installed.

Nothing here is imported before a function is called: both may be missing.
"""

from __future__ import annotations

import argparse


def torch_npu_version() -> str:
    """The version that torch_npu says of itself; importing it adds ``torch.npu``."""
    import torch_npu

    return str(torch_npu.__version__)


def is_emulated() -> bool:
    """Whether torch_npu is that of the emulated NPU."""
    import torch_npu

    return hasattr(torch_npu, "emulated_memory_bytes")


def active_platform() -> str:
    """The qualified name of the class of vLLM's platform in this process."""
    from vllm.platforms import current_platform

    found = type(current_platform)
    return f"{found.__module__}.{found.__qualname__}"


def vllm_parser() -> argparse.ArgumentParser:
    """The parser of ``vllm serve`` alone."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    subparsers = FlexibleArgumentParser().add_subparsers(dest="subparser")
    parser: argparse.ArgumentParser = ServeSubcommand().subparser_init(subparsers)
    return parser
