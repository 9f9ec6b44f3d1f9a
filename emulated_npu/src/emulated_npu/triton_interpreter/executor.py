# SPDX-License-Identifier: Apache-2.0
"""Runs the grid of an interpreted Triton kernel on npu tensors without copying them.

Triton's own executor copies each device tensor to the host and back. On the emulated NPU that
would be slow, and would count as device-to-host copies that no kernel makes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from emulated_npu import counters
from emulated_npu.device.native import cpu_alias
from emulated_npu.recording import map_tensors, record_call
from emulated_npu.triton_interpreter import stand_ins


@dataclass(frozen=True)
class CompiledKernel:
    """What a launch gives back: ``compiled[grid](...)`` runs it without its constants again.

    Attributes:
        executor: makes an executor for a grid.
        constants: arguments by name that are compiled in.
    """

    executor: Callable[[Any], Any]
    constants: Mapping[str, Any]

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """The kernel for ``grid``."""
        return functools.partial(self.executor(grid), **self.constants)


def install(interpreter: ModuleType) -> None:
    """Replace the executor class of ``triton.runtime.interpreter`` by one that does not copy."""
    base: type[Any] = interpreter.GridExecutor

    class ZeroCopyGridExecutor(base):
        """Lends a kernel CPU aliases of its npu tensors and counts one launch for its name."""

        def __call__(self, *arguments: Any, **named_arguments: Any) -> Any:
            self._launch(*arguments, **named_arguments)
            return CompiledKernel(functools.partial(type(self), self.fn, self.arg_names), self._own)

        def _launch(self, *arguments: Any, **named_arguments: Any) -> None:
            # What a compiled kernel has in it.
            self._own = {
                name: named_arguments[name] for name in self.constexprs if name in named_arguments
            }
            if not named_arguments.get("warmup", False):
                name = f"triton.{self.fn.__name__}"
                if record_call(name, self._run, arguments, named_arguments):
                    return
                counters.record_launch(name)
            self._run(*arguments, **named_arguments)

        def _run(self, *arguments: Any, **named_arguments: Any) -> Any:
            stand_in = stand_ins.KERNELS.get(f"{self.fn.__module__}.{self.fn.__name__}")
            if stand_in is not None:
                named = dict(zip(self.arg_names, arguments, strict=False)) | named_arguments
                aliases = {name: _alias(value) for name, value in named.items()}
                if stand_in(**aliases) is not NotImplemented:
                    return None
            return super().__call__(*arguments, **named_arguments)

        def _init_args_hst(
            self, arguments: tuple[Any, ...], named_arguments: dict[str, Any]
        ) -> tuple[list[Any], dict[str, Any]]:
            aliases = [_alias(value) for value in arguments]
            return aliases, {name: _alias(value) for name, value in named_arguments.items()}

        def _restore_args_dev(self, *_arguments: Any) -> None:
            """Nothing to copy back: the kernel wrote to the device memory itself."""

    # Of compiled functions; an interpreted one has none.
    interpreter.InterpretedFunction.pre_run_hooks = ()
    interpreter.GridExecutor = ZeroCopyGridExecutor  # type: ignore[attr-defined]
    # Compiled kernels wrap around. The interpreter checks each sum and product for overflow, which
    # takes two thirds of its time.
    options = interpreter.InterpreterOptions(sanitize_overflow=False)
    interpreter.interpreter_builder.options = options


def _alias(value: Any) -> Any:
    return map_tensors(value, cpu_alias)
