# SPDX-License-Identifier: Apache-2.0
"""The process group backend ``hccl`` of the emulated NPU: Gloo on zero-copy CPU aliases.

An npu tensor's memory is host memory, so each collective lends Gloo CPU aliases of its tensors and
Gloo writes the results where they belong. Source of the semantics: torch.distributed's
documentation of each collective; Gloo is the reference, this file only adapts arguments.

Two generations of method names are offered, since PyTorch 2.13 renamed the single-tensor
collectives (``all_gather_single`` for ``_allgather_base`` and so on) and callers use either.

In a graph a collective is recorded and runs at each replay; every rank replays the same graph.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import (  # type: ignore[attr-defined]
    Store,
    _create_work_from_future,
)

from emulated_npu import counters
from emulated_npu.device.native import cpu_alias
from emulated_npu.recording import record_call

if TYPE_CHECKING:
    # The stub describes what a caller may pass; a backend is called with the lists of it only.
    ProcessGroup: TypeAlias = Any
else:
    from torch.distributed import ProcessGroup

DEFAULT_TIMEOUT = timedelta(minutes=30)
_COMMUNICATOR_NAME = "emulated_hccl"


Method: TypeAlias = "Callable[..., dist.Work]"


def _collective(name: str) -> Callable[[Method], Method]:
    """A collective is one launch; where the stream records, it runs at each replay instead."""

    def decorate(method: Method) -> Method:
        @functools.wraps(method)
        def launch(self: ProcessGroup, *arguments: Any, **named: Any) -> dist.Work:
            def replay(*again: Any, **again_named: Any) -> None:
                method(self, *again, **again_named).wait()

            if record_call(f"hccl.{name}", replay, arguments, named):
                return _completed_work([])
            counters.record_launch(f"hccl.{name}")
            return method(self, *arguments, **named)

        return launch

    return decorate


class HcclOptions:
    """Options of an hccl group. They steer hardware and change no result, so none is read."""

    def __init__(self, is_high_priority_stream: bool = False) -> None:
        self.is_high_priority_stream = is_high_priority_stream
        self.op_timeout = DEFAULT_TIMEOUT
        self.hccl_config: dict[str, object] = {}


class ProcessGroupHCCL(ProcessGroup):
    """A process group for npu tensors, with the public names of torch_npu's class."""

    Options = HcclOptions

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        options: HcclOptions | timedelta | None = None,
    ) -> None:
        super().__init__(rank, size)
        timeout = options if isinstance(options, timedelta) else DEFAULT_TIMEOUT
        self._gloo: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        self._group_name = ""
        self._group_description = ""

    # What torch.distributed asks a group about itself.

    def getBackendName(self) -> str:  # noqa: N802 (name fixed by PyTorch)
        return "hccl"

    @property
    def group_name(self) -> str:
        return self._group_name

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    @property
    def group_desc(self) -> str:
        return self._group_description

    def _set_group_desc(self, description: str) -> None:
        self._group_description = description

    def _get_backend(self, device: torch.device) -> ProcessGroupHCCL:
        """The group is its own backend, for every device type."""
        return self

    def get_hccl_comm_name(self, rank: int) -> str:
        """Name of the communicator, which vllm-ascend hands to communicating operators."""
        name = f"{_COMMUNICATOR_NAME}_{self._group_name}"
        _communicators[name] = self
        return name

    def shutdown(self) -> None:
        self._gloo.shutdown()

    def abort(self) -> None:
        self._gloo.abort()

    # The parameter `opts` has its name from PyTorch, which passes it by name here and there.

    # Collectives whose tensors all have the same shape.

    @_collective("all_reduce")
    def allreduce(self, tensors: Any, opts: Any = None) -> dist.Work:
        return self._gloo.allreduce(_aliases(tensors), *_given(opts))

    @_collective("all_reduce_coalesced")
    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> dist.Work:
        aliases = _aliases(tensors)
        return self._gloo.allreduce_coalesced(aliases, *_given(opts))

    @_collective("broadcast")
    def broadcast(self, tensors: Any, opts: Any) -> dist.Work:
        return self._gloo.broadcast(_aliases(tensors), opts)

    @_collective("reduce")
    def reduce(self, tensors: Any, opts: Any) -> dist.Work:
        return self._gloo.reduce(_aliases(tensors), opts)

    @_collective("all_gather")
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        aliases = _aliases(inputs)
        return self._gloo.allgather(_aliases(outputs), aliases, *_given(opts))

    @_collective("gather")
    def gather(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        return self._gloo.gather(_aliases(outputs), _aliases(inputs), opts)

    @_collective("scatter")
    def scatter(self, outputs: Any, inputs: Any, opts: Any) -> dist.Work:
        return self._gloo.scatter(_aliases(outputs), _aliases(inputs), opts)

    @_collective("reduce_scatter")
    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """``outputs[0]`` gets the reduction of every rank's ``inputs[0][own rank]``."""
        outputs, inputs = _aliases(outputs), _aliases(inputs)
        for output, pieces in zip(outputs, inputs, strict=True):
            self._reduce_pieces(output, torch.stack(pieces), opts)
        return _completed_work(outputs)

    # Collectives on one tensor that holds the pieces of all ranks along dimension 0.

    @_collective("all_gather_single")
    def all_gather_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        pieces = list(cpu_alias(output).view(self.size(), *tensor.shape).unbind(0))
        alias = _aliases(tensor)
        return self._gloo.allgather([pieces], [alias], *_given(opts))

    @_collective("reduce_scatter_single")
    def reduce_scatter_single(
        self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        output, tensor = cpu_alias(output), _aliases(tensor)
        # A copy: the reduction below writes to it, and a collective must leave its input alone.
        self._reduce_pieces(output, tensor.reshape(self.size(), *output.shape).clone(), opts)
        return _completed_work([output])

    @_collective("all_to_all_single")
    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_sizes: list[int],
        input_sizes: list[int],
        opts: Any = None,
    ) -> dist.Work:
        alias = _aliases(tensor)
        return self._gloo.alltoall_base(
            cpu_alias(output), alias, output_sizes, input_sizes, *_given(opts)
        )

    @_collective("all_to_all")
    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> dist.Work:
        """``outputs[r]`` gets rank r's ``inputs[own rank]``; shapes may differ by rank."""
        outputs, inputs = _aliases(outputs), _aliases(inputs)
        # Gloo exchanges one flat buffer only.
        sent = torch.cat([tensor.reshape(-1) for tensor in inputs])
        output_sizes = [tensor.numel() for tensor in outputs]
        received = torch.empty(sum(output_sizes), dtype=sent.dtype)
        input_sizes = [tensor.numel() for tensor in inputs]
        self._gloo.alltoall_base(received, sent, output_sizes, input_sizes).wait()
        for output, piece in zip(outputs, received.split(output_sizes), strict=True):
            output.copy_(piece.view_as(output))
        return _completed_work(outputs)

    def _allgather_base(self, output: Any, tensor: Any, opts: Any = None) -> dist.Work:
        return self.all_gather_single(output, tensor, opts)

    def _reduce_scatter_base(self, output: Any, tensor: Any, opts: Any = None) -> dist.Work:
        return self.reduce_scatter_single(output, tensor, opts)

    def alltoall_base(
        self, output: Any, tensor: Any, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> dist.Work:
        return self.all_to_all_single(output, tensor, output_sizes, input_sizes, opts)

    # Point to point, and the barrier.

    @_collective("send")
    def send(self, tensors: Any, destination: int, tag: int = 0) -> dist.Work:
        return self._gloo.send(_aliases(tensors), destination, tag)

    @_collective("receive")
    def recv(self, tensors: Any, source: int, tag: int = 0) -> dist.Work:
        return self._gloo.recv(_aliases(tensors), source, tag)

    @_collective("barrier")
    def barrier(self, opts: Any = None) -> dist.Work:
        # Without opts: they name npu devices, which Gloo does not know.
        return self._gloo.barrier()

    def _reduce_pieces(self, output: torch.Tensor, pieces: torch.Tensor, opts: Any) -> None:
        """Reduce `pieces` (ranks, *output.shape) over all ranks; keep this rank's piece.

        Gloo has no reduce-scatter for every dtype, so the whole is reduced on every rank.
        """
        reduction = dist.AllreduceOptions()
        if opts is not None:
            reduction.reduceOp = opts.reduceOp
        self._gloo.allreduce([pieces], reduction).wait()
        output.copy_(pieces[self.rank()])


_communicators: weakref.WeakValueDictionary[str, ProcessGroupHCCL] = weakref.WeakValueDictionary()
"""Groups by the names that were asked for."""


def add_up(tensor: torch.Tensor, communicator: str) -> None:
    """Add a host tensor up over the ranks of a communicator, in place: for operators' kernels.

    Raises ValueError for a name that no group of this process has given.
    """
    group = _communicators.get(communicator)
    if group is None:
        raise ValueError(
            f"no hccl communicator is called {communicator!r}; names come from a group's "
            f"get_hccl_comm_name"
        )
    group._gloo.allreduce([tensor]).wait()


def _given(opts: Any) -> tuple[Any, ...]:
    """Options as arguments of a Gloo method, which has its own default when there are none."""
    return () if opts is None else (opts,)


def _aliases(tensors: Any) -> Any:
    if isinstance(tensors, torch.Tensor):
        return cpu_alias(tensors)
    return [_aliases(item) for item in tensors]


def _completed_work(results: Sequence[torch.Tensor]) -> dist.Work:
    future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future()
    future.set_result(list(results))
    return _create_work_from_future(future)


def _create_process_group(
    store: Store, rank: int, size: int, timeout: timedelta
) -> ProcessGroupHCCL:
    return ProcessGroupHCCL(store, rank, size, timeout)


def install() -> None:
    """Register the backend ``hccl`` for device type ``npu``, as importing torch_npu does."""
    if "hccl" not in dist.Backend.backend_list:
        dist.Backend.register_backend("hccl", _create_process_group, devices=["npu"])
    dist.is_hccl_available = lambda: True  # type: ignore[attr-defined]
