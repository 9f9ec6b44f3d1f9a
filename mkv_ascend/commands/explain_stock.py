# SPDX-License-Identifier: Apache-2.0
"""vLLM's own grouping of layers, by its own functions with vllm-ascend's patches.

``ask_vllm`` runs ``python -m mkv_ascend.commands.explain_stock`` in a process of its own, on the
emulated NPU where there is no real one: vllm-ascend cannot be imported without torch_npu, and its
patches cannot be taken back. ``VLLM_PLUGINS=ascend`` keeps mkv_ascend out of that process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from mkv_ascend.commands.explain_specs import Spec, spec_to_plain
from mkv_ascend.layout.demand import Request
from mkv_ascend.layout.report import OtherGrouping

MARK = "mkv-ascend explain: "
"""Begins the line of output with the answer; vLLM may print lines of its own."""
SECONDS = 300


class StockError(RuntimeError):
    """vLLM could not be asked; the message says why."""


def ask_vllm(specs: Mapping[str, Spec], request: Request) -> OtherGrouping:
    """vLLM's own grouping of these layers, or the error that it raises.

    Raises StockError when the process cannot run or ends without an answer.
    """
    question = {
        "specs": {name: spec_to_plain(spec) for name, spec in specs.items()},
        "tokens": request.tokens,
        "tokens_per_step": request.tokens_per_step,
    }
    command = (sys.executable, "-m", "mkv_ascend.commands.explain_stock")
    try:
        done = subprocess.run(
            command,
            input=json.dumps(question),
            env=_environment(command),
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise StockError(f"vLLM gave no answer within {SECONDS} s") from error
    answers = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not answers:
        words = done.stderr.strip().splitlines()[-1:] or ["nothing"]
        raise StockError(
            f"the process that asks vLLM ended with status {done.returncode}; it said: {words[0]}"
        )
    return OtherGrouping(**json.loads(answers[-1][len(MARK) :]))


def _environment(command: tuple[str, ...]) -> dict[str, str]:
    from mkv_ascend import envs
    from mkv_ascend.emulator.host_check import find_real_ascend
    from mkv_ascend.emulator.launch import EmulatedProcess, LaunchError
    from mkv_ascend.emulator.settings import EmulatorSettings

    base = {**os.environ, "VLLM_PLUGINS": "ascend", "VLLM_LOGGING_LEVEL": "ERROR"}
    if find_real_ascend():
        return base
    try:
        process = EmulatedProcess(command, EmulatorSettings.from_environment(os.environ))
        process.check(base)
    except (LaunchError, envs.EnvironmentVariableError) as error:
        raise StockError(f"without an Ascend NPU it needs the emulated one: {error}") from error
    return process.environment(base)


def _spec(plain: Mapping[str, Any]) -> Any:
    """vLLM's or vllm-ascend's spec of a class name and fields."""
    import torch
    from vllm.v1 import kv_cache_interface as of_vllm
    from vllm_ascend.core import kv_cache_interface as of_ascend

    fields = dict(plain["fields"])
    if "dtype" in fields:
        fields["dtype"] = getattr(torch, fields["dtype"])
    if "shapes" in fields:
        fields["shapes"] = tuple(tuple(shape) for shape in fields["shapes"])
        fields["dtypes"] = tuple(getattr(torch, dtype) for dtype in fields["dtypes"])
    if fields.get("sparse_head_dim") is not None:
        fields["sparse_head_dim"] = tuple(fields["sparse_head_dim"])
    home = of_vllm if hasattr(of_vllm, plain["class"]) else of_ascend
    return getattr(home, plain["class"])(**fields)


def _vllm_config(tokens: int, tokens_per_step: int) -> Any:
    """The few fields that vLLM's grouping and its memory estimate read."""
    return SimpleNamespace(
        max_concurrent_batches=1,
        model_config=SimpleNamespace(max_model_len=tokens),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False, max_num_batched_tokens=tokens_per_step
        ),
        cache_config=SimpleNamespace(mamba_cache_mode="none", num_gpu_blocks_override=None),
        speculative_config=None,
    )


def _block_bytes(groups: list[Any]) -> int:
    """Bytes of one block id, as ``get_kv_cache_config_from_groups`` shares memory out."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    if len(groups) == 1 and isinstance(groups[0].kv_cache_spec, UniformTypeKVCacheSpecs):
        size: int = groups[0].kv_cache_spec.page_size_bytes
        return size
    page: int = groups[0].kv_cache_spec.page_size_bytes
    return page * max(len(group.layer_names) for group in groups)


def group_by_vllm(question: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of OtherGrouping; to be called in a process with vllm-ascend."""
    import vllm_ascend.ops  # noqa: F401  First of vllm_ascend, or its imports go in a circle.
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
    from vllm_ascend.utils import adapt_patch

    adapt_patch(is_global_patch=True)
    config = _vllm_config(question["tokens"], question["tokens_per_step"])
    register_all_kvcache_specs(config)
    specs = {name: _spec(plain) for name, plain in question["specs"].items()}
    try:
        groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    except (NotImplementedError, AssertionError, ValueError) as error:
        return {"error": _described(error)}
    held: int = kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups)
    block_bytes = _block_bytes(groups)
    return {
        "groups": len(groups),
        "request_blocks": -(-held // block_bytes),
        "block_bytes": block_bytes,
    }


def _described(error: Exception) -> str:
    """Class, message and place: some of vLLM's assertions have no message."""
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{words} ({Path(place.filename).name}:{place.lineno})"


def main() -> None:
    """Read the question from standard input, print the answer on a line of its own."""
    answer = group_by_vllm(json.loads(sys.stdin.read()))
    print(f"\n{MARK}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main()
