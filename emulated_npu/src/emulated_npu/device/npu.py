# SPDX-License-Identifier: Apache-2.0
"""The module ``torch.npu``: names of torch_npu's runtime, gathered from the files beside this one.

A name that is not here fails with an AttributeError that says so; programs that probe with
``hasattr`` then do without it.
"""

from __future__ import annotations

from typing import Any

from emulated_npu.device import memory
from emulated_npu.device.devices import (
    _exchange_device,
    _get_device_index,
    _is_in_bad_fork,
    _lazy_init,
    _maybe_exchange_device,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_amp_supported_dtype,
    get_device_capability,
    get_device_name,
    get_device_properties,
    get_soc_version,
    init,
    is_available,
    is_bf16_supported,
    is_initialized,
    set_compile_mode,
    set_device,
    set_option,
    synchronize,
    utilization,
)
from emulated_npu.device.graphs import (
    NPUGraph,
    graph,
    graph_pool_handle,
    graph_task_group_begin,
    graph_task_group_end,
    graph_task_update_begin,
    graph_task_update_end,
    is_current_stream_capturing,
    make_graphed_callables,
)
from emulated_npu.device.host_functions import (
    _launch_host_func,
    _subscribe_report,
    _unsubscribe_report,
)
from emulated_npu.device.memory import (
    empty_cache,
    ipc_collect,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_snapshot,
    memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
)
from emulated_npu.device.random import (
    generator_of,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from emulated_npu.device.streams import (
    Event,
    ExternalEvent,
    ExternalStream,
    Stream,
    StreamContext,
    SyncLaunchStream,
    current_blas_handle,
    current_stream,
    default_stream,
    set_stream,
    stream,
)
from emulated_npu.device.switches import (
    config,
    conv,
    matmul,
    super_kernel_scope_begin,
    super_kernel_scope_end,
)

# Not of torch_npu: says that an op without a kernel of its own runs the CPU's on this memory.
runs_cpu_kernels = True

__all__ = [name for name in dir() if not name.startswith("__") and name not in ("Any",)]


def __getattr__(name: str) -> Any:
    if name == "default_generators":
        return tuple(generator_of(index) for index in range(device_count()))
    raise AttributeError(f"emulated NPU has no torch.npu.{name}")
