# SPDX-License-Identifier: Apache-2.0
"""Let the first server start as fast as later ones: keep bytecode, and what vLLM asks of models.

    .venv/bin/python tools/warm_up.py [FOLDER ...]      of checkpoints, or of folders of them
    .venv/bin/python tools/warm_up.py --tests           all that tests use

Imports in one emulated process what `vllm serve` imports, so that Python keeps its bytecode (set-up
installs without it). Also lets vLLM note what it must know about each checkpoint's model class.
vLLM otherwise finds this out in a process for each class, some 10 s each, and keeps it too.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

MODULES = (
    "vllm.entrypoints.cli.main",
    "vllm.entrypoints.cli.serve",
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_model_runner",
    "vllm_ascend.worker.worker",
    "vllm_ascend.worker.model_runner_v1",
    "vllm_ascend.compilation.compiler_interface",
    "torch._dynamo",
    "torch._inductor.compile_fx",
    "torch.fx.experimental.symbolic_shapes",
)
"""What a server's processes import that some of them import late, beside our own worker."""


def main(arguments: list[str]) -> int:
    if os.environ.get("TRITON_INTERPRET") == "1":
        return warm_up(arguments)
    # Again as a process on the emulated NPU, as servers are.
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [str(Path(sys.executable).parent / "mkv-ascend"), "emulate", "--"]
    return subprocess.run(
        [*command, sys.executable, __file__, *arguments], env=environment
    ).returncode


def warm_up(arguments: list[str]) -> int:
    """Import the modules and inspect the checkpoints' model classes; returns 0."""
    from mkv_ascend.adapters.contract import WORKER

    for name in (*MODULES, WORKER.rpartition(".")[0]):
        importlib.import_module(name)
    folders, classes = asked_for(arguments)
    configurations = (file for path in folders for file in configurations_in(path))
    classes |= {name for file in configurations for name in architectures(file)}
    if classes:
        inspect(sorted(classes))
    return 0


OF_PICTURES = {"Qwen2_5_VLForConditionalGeneration", "Qwen3VLForConditionalGeneration"}
"""Classes of models that tests write around a tiny one."""


def asked_for(arguments: list[str]) -> tuple[list[Path], set[str]]:
    """Folders of checkpoints, and further classes of models."""
    if arguments != ["--tests"]:
        return [Path(argument) for argument in arguments], set()
    # A file that is run has its own folder on the path, not the repository.
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from tests.support.tiny_models import store

    configs = store.configurations()
    return [], {name for one in configs for name in classes_of(one)} | OF_PICTURES


def configurations_in(folder: Path) -> list[Path]:
    """The ``config.json`` of a checkpoint, or those of all checkpoints in ``folder``."""
    file = folder / "config.json"
    return [file] if file.is_file() else sorted(folder.glob("[!.]*/config.json"))


def architectures(configuration: Path) -> list[str]:
    """The model classes that a ``config.json`` names."""
    return classes_of(json.loads(configuration.read_text(encoding="utf-8")))


def classes_of(config: dict[str, Any]) -> list[str]:
    """The model classes that the content of a ``config.json`` names."""
    return list(config.get("architectures") or [])


def inspect(classes: list[str]) -> None:
    """Have vLLM inspect the classes here instead of in a process each, and keep the result."""
    from vllm.model_executor.models import registry
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    registry._run_in_subprocess = lambda inspected: inspected()
    for name in classes:
        model = registry.ModelRegistry.models.get(name)
        if isinstance(model, registry._LazyRegisteredModel):
            model.inspect_model_cls()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
