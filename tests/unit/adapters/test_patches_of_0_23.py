# SPDX-License-Identifier: Apache-2.0
"""Functions in place of vLLM 0.23.0's: names of new blocks, short steps, a server's port."""

import contextlib
import socket
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.entrypoints.openai.api_server import create_server_socket
from vllm.v1.core.kv_cache_coordinator import get_kv_cache_coordinator
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)

from mkv_ascend.adapters.refusal import StartUpRefused
from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_23", "vLLM 0.30.0 names new blocks of every group")
new_blocks = hosts.module("patches.prefix_hits")

SIZES = {"block_size": 128, "num_kv_heads": 1, "head_size": 64, "dtype": torch.bfloat16}
FULL = FullAttentionSpec(**SIZES)
WINDOW = SlidingWindowSpec(sliding_window=64, **SIZES)
STATE = MambaSpec(block_size=128, shapes=((3, 64),), dtypes=(torch.float32,))


def named(spec: KVCacheSpec, before: list[int], new: list[int], *, needed: bool = True) -> Any:
    """Blocks that a group's manager has named once ``new`` ones are allocated."""
    manager = SimpleNamespace(kv_cache_spec=spec, new_block_ids=list(before))
    coordinator = SimpleNamespace(
        kv_cache_config=SimpleNamespace(needs_kv_cache_zeroing=needed),
        single_type_managers=[manager],
    )
    blocks = [SimpleNamespace(block_id=block) for block in new]
    (name_new_blocks,) = new_blocks.name_new_blocks.functions.values()
    given = name_new_blocks(lambda *_: (blocks,), coordinator, "request", 300)
    assert given == (blocks,)
    return manager.new_block_ids


@pytest.mark.parametrize("spec", [FULL, WINDOW], ids=["full", "window"])
def test_every_new_block_is_named_once(spec: KVCacheSpec) -> None:
    assert named(spec, [7], [3, 5]) == [7, 3, 5]
    # vLLM has named those of dense layers by then.
    assert named(spec, [7, 3, 5], [3, 5]) == [7, 3, 5]
    assert named(spec, [7], []) == [7]


def test_states_and_engines_that_zero_nothing_name_none() -> None:
    assert named(STATE, [], [3, 5]) == []
    assert named(WINDOW, [], [3, 5], needed=False) == []


def test_names_that_nobody_takes_are_not_kept() -> None:
    """vLLM's own managers name blocks of dense layers in engines that zero nothing."""
    groups = [KVCacheGroupSpec([name], spec) for name, spec in (("a", FULL), ("b", WINDOW))]
    config = KVCacheConfig(num_blocks=20, kv_cache_tensors=[], kv_cache_groups=groups)
    assert not config.needs_kv_cache_zeroing
    coordinator = get_kv_cache_coordinator(
        config,
        max_model_len=512,
        max_num_batched_tokens=512,
        use_eagle=False,
        enable_caching=False,
        enable_kv_cache_events=False,
        dcp_world_size=1,
        pcp_world_size=1,
        scheduler_block_size=128,
        hash_block_size=128,
    )
    allocate = type(coordinator).allocate_new_blocks
    (name_new_blocks,) = new_blocks.name_new_blocks.functions.values()
    allocated = name_new_blocks(allocate, coordinator, "request", 300, 300)
    assert [len(blocks) for blocks in allocated] == [3, 3]
    kept = [manager.new_block_ids for manager in coordinator.single_type_managers]
    assert kept == [[], []]


hosts.skip_module_unless("vllm_ascend_0_23", "vLLM 0.30.0 lets a chunk end inside a block")
refuse_short_steps = hosts.module("patches.recurrent").refuse_short_steps


def config(mode: str = "align", most: int = 1024, scheduled: Any = None, chunk: int = 0) -> Any:
    return SimpleNamespace(
        cache_config=SimpleNamespace(mamba_cache_mode=mode, block_size=512),
        scheduler_config=SimpleNamespace(
            max_num_batched_tokens=most,
            max_num_scheduled_tokens=scheduled,
            long_prefill_token_threshold=chunk,
        ),
    )


@pytest.mark.parametrize(
    "given",
    [
        {"most": 512},
        {"most": 600, "scheduled": 512},
        {"chunk": 512},
        {"mode": "none", "most": 64, "chunk": 64},
    ],
)
def test_a_step_and_a_chunk_of_a_whole_block_are_served(given: dict[str, Any]) -> None:
    refuse_short_steps(config(**given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"most": 511}, "a step takes at most 511: .*raise it by 1 or more"),
        # What drafts keep of a step is not the scheduler's to give.
        ({"most": 600, "scheduled": 500}, r"at most 500: .*\(600\) drafts keep the rest; .* by 12"),
        ({"chunk": 511}, "chunks of 511: none would reach that end. Raise it to 512"),
    ],
)
def test_less_is_refused_with_what_to_change(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        refuse_short_steps(config(**given))


hosts.skip_module_unless("vllm_ascend_0_23", "vLLM 0.30.0 shares no port")

(made_by_us,) = hosts.module("patches.start_up").refuse_shared_port.functions.values()


def ours(addr: tuple[str, int]) -> socket.socket:
    """The socket that a server gets; the caller closes it."""
    made: socket.socket = made_by_us(create_server_socket, addr)
    return made


def test_a_port_on_which_a_server_listens_is_refused() -> None:
    with create_server_socket(("127.0.0.1", 0)) as first:
        first.listen()
        with pytest.raises(StartUpRefused, match=r"another server.*Possible: .*Change: "):
            ours(first.getsockname())


def test_of_two_servers_that_begin_at_once_the_later_one_fails() -> None:
    with ours(("127.0.0.1", 0)) as first, ours(first.getsockname()) as second:
        first.listen()
        with pytest.raises(OSError, match="in use"):
            second.listen()


def test_a_port_whose_connections_have_ended_is_free() -> None:
    with contextlib.ExitStack() as open_ones:
        server = open_ones.enter_context(ours(("127.0.0.1", 0)))
        address = server.getsockname()
        server.listen()
        client = open_ones.enter_context(socket.create_connection(address))
        connection, _ = server.accept()
        # The side that closes first keeps the port for a while.
        connection.close()
        assert client.recv(1) == b""
    ours(address).close()
