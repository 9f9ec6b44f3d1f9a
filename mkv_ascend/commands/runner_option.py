# SPDX-License-Identifier: Apache-2.0
"""``--runner``: which of vLLM's model runners a command answers for."""

from __future__ import annotations

import argparse
import os

VARIABLE = "VLLM_USE_V2_MODEL_RUNNER"
"""vLLM's variable that chooses model runner V2."""


class UnknownRunnerError(ValueError):
    """The host has no model runner of that name; the text says which it has."""


def add_runner_option(parser: argparse.ArgumentParser) -> None:
    """Describe ``--runner``."""
    parser.add_argument(
        "--runner",
        choices=("v1", "v2"),
        help=f"vLLM's model runner (default: what {VARIABLE} says)",
    )


def runner_asked_for(asked: str | None, command: str) -> str:
    """The model runner to answer for: ``asked``, or the one of the variable.

    Args:
        asked: what ``--runner`` says.
        command: what to do with another host, for the message.

    Raises:
        UnknownRunnerError: the host has none of that name.
    """
    from mkv_ascend.adapters.installed import runners

    served = runners()
    if asked is not None and asked not in served:
        raise UnknownRunnerError(
            f"--runner {asked}: the installed vllm-ascend has {' and '.join(served)}. Leave the "
            f"option out, or {command} with vllm-ascend 0.30.0rc2"
        )
    by_variable = os.environ.get(VARIABLE, "").strip() not in ("", "0")
    return asked or ("v2" if by_variable and "v2" in served else "v1")
