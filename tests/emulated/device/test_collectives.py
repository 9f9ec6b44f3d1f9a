# SPDX-License-Identifier: Apache-2.0
"""Every collective of the emulated hccl against its definition, in 2 and 4 processes.

Each rank fills its tensors from its rank, so that each test computes the expected tensors of all
ranks in plain torch on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from emulated_npu import counters

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64)


def values(rank: int, size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`size` rows of three small whole numbers (exact in every dtype) that only `rank` has."""
    return (torch.arange(size * 3).reshape(size, 3) + 10 * rank).to(dtype)


def expect(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device.type == "npu"
    torch.testing.assert_close(actual.cpu(), expected, rtol=0, atol=0)


def check_all_reduce(rank: int, size: int) -> None:
    for dtype in DTYPES:
        tensor = values(rank, 2, dtype).npu()
        dist.all_reduce(tensor)
        expect(tensor, sum(values(peer, 2, dtype) for peer in range(size)))
    largest = values(rank, 2).npu()
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    expect(largest, values(size - 1, 2))


def check_broadcast(rank: int, size: int) -> None:
    tensor = values(rank, 2).npu()
    dist.broadcast(tensor, src=size - 1)
    expect(tensor, values(size - 1, 2))


def check_reduce(rank: int, size: int) -> None:
    tensor = values(rank, 2).npu()
    dist.reduce(tensor, dst=1)
    if rank == 1:
        expect(tensor, sum(values(peer, 2) for peer in range(size)))


def check_all_gather(rank: int, size: int) -> None:
    gathered = [torch.zeros(2, 3).npu() for _ in range(size)]
    dist.all_gather(gathered, values(rank, 2).npu())
    for peer in range(size):
        expect(gathered[peer], values(peer, 2))


def check_all_gather_single(rank: int, size: int) -> None:
    for gather in (dist.all_gather_single, dist.all_gather_into_tensor):
        gathered = torch.zeros(size * 2, 3).npu()
        gather(gathered, values(rank, 2).npu())
        expect(gathered, torch.cat([values(peer, 2) for peer in range(size)]))


def check_gather(rank: int, size: int) -> None:
    gathered = [torch.zeros(2, 3).npu() for _ in range(size)] if rank == 0 else None
    dist.gather(values(rank, 2).npu(), gathered, dst=0)
    for peer, tensor in enumerate(gathered or []):
        expect(tensor, values(peer, 2))


def check_scatter(rank: int, size: int) -> None:
    pieces = [values(peer, 2).npu() for peer in range(size)] if rank == 0 else None
    received = torch.zeros(2, 3).npu()
    dist.scatter(received, pieces, src=0)
    expect(received, values(rank, 2))


def check_reduce_scatter(rank: int, size: int) -> None:
    pieces = [values(rank, 2).npu() + peer for peer in range(size)]
    received = torch.zeros(2, 3).npu()
    dist.reduce_scatter(received, pieces)
    expect(received, sum(values(peer, 2) + rank for peer in range(size)))


def check_reduce_scatter_single(rank: int, size: int) -> None:
    for scatter in (dist.reduce_scatter_single, dist.reduce_scatter_tensor):
        sent = values(rank, 2 * size).npu()
        received = torch.zeros(2, 3).npu()
        scatter(received, sent)
        total = sum(values(peer, 2 * size) for peer in range(size))
        expect(received, total.chunk(size)[rank])
        expect(sent, values(rank, 2 * size))


def check_all_to_all_single(rank: int, size: int) -> None:
    received = torch.zeros(2 * size, 3).npu()
    dist.all_to_all_single(received, values(rank, 2 * size).npu())
    expected = [values(peer, 2 * size).chunk(size)[rank] for peer in range(size)]
    expect(received, torch.cat(expected))


def check_all_to_all_single_of_unequal_parts(rank: int, size: int) -> None:
    # Rank r sends p + 1 rows to rank p.
    sent_rows = [peer + 1 for peer in range(size)]
    received = torch.zeros(size * (rank + 1), 3).npu()
    sent = values(rank, sum(sent_rows)).npu()
    dist.all_to_all_single(received, sent, [rank + 1] * size, sent_rows)
    parts = [values(peer, sum(sent_rows)).split(sent_rows)[rank] for peer in range(size)]
    expect(received, torch.cat(parts))


def check_all_to_all(rank: int, size: int) -> None:
    received = [torch.zeros(peer + rank + 1, 3).npu() for peer in range(size)]
    sent = [values(rank, rank + peer + 1).npu() for peer in range(size)]
    dist.all_to_all(received, sent)
    for peer in range(size):
        expect(received[peer], values(peer, peer + rank + 1))


def check_send_and_receive(rank: int, size: int) -> None:
    if rank == 0:
        dist.send(values(0, 2).npu(), dst=1)
    elif rank == 1:
        received = torch.zeros(2, 3).npu()
        dist.recv(received, src=0)
        expect(received, values(0, 2))


def check_a_subgroup_and_asynchronous_work(rank: int, size: int) -> None:
    group = dist.new_group([0, 1], backend="hccl")
    if rank < 2:
        tensor = values(rank, 2).npu()
        work = dist.all_reduce(tensor, group=group, async_op=True)
        work.wait()
        expect(tensor, values(0, 2) + values(1, 2))
        name = group._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
        assert isinstance(name, str)


def check_views_are_written_in_place(rank: int, size: int) -> None:
    storage = torch.zeros(4, 3).npu()
    storage[1:3] = values(rank, 2).npu()
    dist.all_reduce(storage[1:3])
    expect(storage[1:3], sum(values(peer, 2) for peer in range(size)))
    expect(storage[0], torch.zeros(3))


def check_launches_are_counted(rank: int, size: int) -> None:
    before = counters.snapshot()
    dist.all_reduce(values(rank, 2).npu())
    dist.all_reduce(values(rank, 2).npu())
    dist.barrier()
    launches = (counters.snapshot() - before).launches
    assert launches["hccl.all_reduce"] == 2
    assert launches["hccl.barrier"] == 1


def check_a_graph_repeats_collectives(rank: int, size: int) -> None:
    summed, gathered = values(rank, 2).npu(), torch.zeros(2 * size, 3).npu()
    graph = torch.npu.NPUGraph()
    with torch.npu.graph(graph):
        dist.all_reduce(summed)
        dist.all_gather_into_tensor(gathered, summed * (rank + 1))
    expect(summed, values(rank, 2))
    total = sum(values(other, 2) for other in range(size))
    graph.replay()
    expect(summed, total)
    expect(gathered, torch.cat([total * (other + 1) for other in range(size)]))


def check_a_product_that_all_ranks_add_up(rank: int, size: int) -> None:
    """matmul_allreduce_add_rmsnorm, which vllm-ascend's fusion pass puts into traced graphs.

    Before 0.30, which has neither any more.
    """
    if not hasattr(torch.ops._C_ascend, "matmul_allreduce_add_rmsnorm"):
        return
    generator = torch.Generator().manual_seed(7)
    whole = (torch.rand(5, 4 * size, generator=generator) - 0.5).bfloat16()
    weight = (torch.rand(6, 4 * size, generator=generator) - 0.5).bfloat16()
    residual = torch.rand(5, 6, generator=generator).bfloat16()
    gamma = torch.rand(6, generator=generator).bfloat16()
    own = slice(4 * rank, 4 * rank + 4)
    name = dist.group.WORLD._get_backend(torch.device("npu")).get_hccl_comm_name(rank)
    operands = (whole[:, own], weight[:, own], residual, gamma)
    found, total = torch.ops._C_ascend.matmul_allreduce_add_rmsnorm(
        *(operand.npu() for operand in operands), name, size, rank, 1e-5, True, False
    )
    rows = whole.double() @ weight.double().T + residual.double()
    expected = rows / (rows.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * gamma.double()
    torch.testing.assert_close(total.cpu().double(), rows, rtol=0.02, atol=0.02)
    torch.testing.assert_close(found.cpu().double(), expected, rtol=0.02, atol=0.02)


CHECKS: tuple[Callable[[int, int], None], ...] = (
    check_all_reduce,
    check_broadcast,
    check_reduce,
    check_all_gather,
    check_all_gather_single,
    check_gather,
    check_scatter,
    check_reduce_scatter,
    check_reduce_scatter_single,
    check_all_to_all_single,
    check_all_to_all_single_of_unequal_parts,
    check_all_to_all,
    check_send_and_receive,
    check_a_subgroup_and_asynchronous_work,
    check_views_are_written_in_place,
    check_launches_are_counted,
    check_a_graph_repeats_collectives,
    check_a_product_that_all_ranks_add_up,
)


def run_rank(rank: int, size: int, store_file: str) -> None:
    """One process: every check in turn. The first failure ends all: a rank that left a collective
    early would leave the others waiting."""
    torch.npu.set_device(rank)
    dist.init_process_group(
        "hccl",
        init_method=f"file://{store_file}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    for check in CHECKS:
        check(rank, size)
        dist.barrier()
    dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 4])
def test_collectives(size: int, tmp_path: Path) -> None:
    # Forked: a new Python would import torch first, which takes longer than all checks.
    multiprocessing.start_processes(
        run_rank, args=(size, str(tmp_path / "store")), nprocs=size, start_method="fork"
    )
