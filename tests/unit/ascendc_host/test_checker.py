# SPDX-License-Identifier: Apache-2.0
"""The host-side AscendC: wrong kernels are caught, each by the one check meant for it; right ones
pass with the results that are computed here; what the chip lacks does not compile."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import ascendc_host
from tests.support.ascendc_host import BuildFailedError, run_compiler

pytestmark = pytest.mark.packaging

FOLDER = ascendc_host.ROOT / "csrc" / "ascendc_host" / "tests"
UNTOUCHED = -7
ELEMENTS = 1024


def case_names(file: str, *, kinds: bool) -> list[Any]:
    """The cases of a source, with their expected kind where asked."""
    found = re.findall(
        r'^MKV_CASE\((\w+), "(\w*)", \d+\)', (FOLDER / file).read_text(), re.MULTILINE
    )
    return found if kinds else [name for name, _ in found]


WRONG = [
    case
    for file in ("wrong_order.cpp", "wrong_memory.cpp", "wrong_use.cpp")
    for case in case_names(file, kinds=True)
]
RIGHT = case_names("right.cpp", kinds=False)
Outcomes = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("ascendc_host") / "cases"
    run_compiler(["-O0", *sorted(FOLDER.glob("[mrw]*.cpp")), "-o", output])
    return output


def run(program: Path, *arguments: str) -> Outcomes:
    done = subprocess.run([program, *arguments], capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["name"]: line for line in lines}


@pytest.fixture(scope="module", params=[0, 1, 2])
def outcomes(program: Path, request: pytest.FixtureRequest) -> Outcomes:
    return run(program, "--seed", str(request.param))


def kinds(outcome: dict[str, Any]) -> set[str]:
    return {problem["kind"] for problem in outcome["report"]["problems"]}


def test_every_case_is_run(outcomes: Outcomes) -> None:
    assert set(outcomes) == {name for name, _ in WRONG} | set(RIGHT)


@pytest.mark.parametrize(("name", "kind"), WRONG)
def test_wrong_kernels_are_caught(outcomes: Outcomes, name: str, kind: str) -> None:
    assert kind
    assert kinds(outcomes[name]) == {kind}, outcomes[name]["report"]["problems"]


def filled(count: int, value: Callable[[int], int], start: int = 0) -> dict[int, int]:
    return {start + i: value(i) for i in range(count)}


EXPECTED: dict[str, dict[int, int]] = {
    "doubled_through_queues": filled(ELEMENTS, lambda i: 2 * i),
    "copied_by_a_bound_queue": filled(1000, lambda i: i),
    "loop_with_flags_by_hand": filled(300, lambda i: i + 1),
    "order_is_passed_on": filled(64, lambda i: i),
    "reads_need_no_order": filled(128, lambda i: i % 64),
    "small_loads_gathered": filled(32, lambda i: 31 * i + 1),
    "indices": filled(203, lambda i: 100 + i),
    "blocks_with_strides": {
        **{5 * block + i: 3 + 5 * block + i for block in range(4) for i in range(2)},
        100: 8,
        101: 9,
        **filled(6, lambda i: 77, 102),
    },
    "scalar_in_between": {0: 45, 1: 1023},
    "beside_a_cached_value": filled(8, lambda i: 4),
    "through_global_memory": {**filled(128, lambda i: 5), 128: 6},
    "reads_a_copy_after_invalidating": {**filled(64, lambda i: 6), 64: 12},
    "invalidates_an_input_first": {0: 7},
    "junk_beside_the_data": filled(5, lambda i: min(max(i - 2, 0), 1)),
    "junk_masked_away": {
        **filled(5, lambda i: i),
        **filled(3, lambda i: 0, 5),
        **filled(8, lambda i: 0, 64),
    },
    "shifts_and_bits": {
        **filled(64, lambda i: (i << 3) >> 2),
        **filled(64, lambda i: -i >> 1, 64),
        **filled(64, lambda i: i & 6 | 1, 128),
    },
    "casts": {**filled(64, lambda i: i // 3), **filled(64, lambda i: i, 64)},
    "all_memory": {},
    "nothing_to_do": {},
    "bytes_and_halves": filled(16, lambda i: i),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_pass_with_the_right_result(outcomes: Outcomes, name: str) -> None:
    assert outcomes[name]["report"]["problems"] == []
    expected = [EXPECTED[name].get(i, UNTOUCHED) for i in range(ELEMENTS)]
    assert outcomes[name]["y"] == expected


def test_messages_name_place_pipes_and_lines(outcomes: Outcomes) -> None:
    """As a reader needs them: both lines, both pipes, the buffer, and what is missing."""
    (problem,) = outcomes["store_before_vector_wrote"]["report"]["problems"]
    source = (FOLDER / "wrong_order.cpp").read_text().splitlines()
    start = next(i for i, line in enumerate(source) if "store_before_vector_wrote" in line)
    # Lines count from 1: Kit, Duplicate, Store follow the head.
    assert problem["line"] == start + 4
    assert "Store" in source[problem["line"] - 1]
    assert (problem["pipe"], problem["core"], problem["file"]) == ("MTE3", 0, "wrong_order.cpp")
    assert "VECOUT TBuf of cases.h:" in problem["buffer"]
    assert f"Duplicate on pipe V at wrong_order.cpp:{start + 3}" in problem["message"]
    assert "V_MTE3" in problem["message"]


def test_a_region_is_named_in_messages(outcomes: Outcomes) -> None:
    (problem,) = outcomes["reads_past_the_input"]["report"]["problems"]
    assert problem["buffer"] == "x"
    assert "8 bytes at byte 4092 of a tensor of 4096 bytes" in problem["message"]


def test_counters(outcomes: Outcomes) -> None:
    """By hand from the source of the two cases."""
    (core,) = outcomes["small_loads_gathered"]["report"]["cores"]
    # 32 loads; the cache emptied and 8 scalar writes, 3 steps of the index, Muls, Gather; a store.
    assert core["instructions"] == {"S": 9, "V": 5, "MTE2": 32, "MTE3": 1}
    assert (core["read_bytes"], core["read_cost"]) == (32 * 4, 32 * 32)
    assert (core["write_bytes"], core["write_cost"]) == (128, 128)
    assert core["ub_bytes"] == 3 * 1024
    cores = outcomes["doubled_through_queues"]["report"]["cores"]
    # 16 tiles of 256 bytes on three cores.
    assert sorted(core["instructions"]["V"] for core in cores) == [5, 5, 6]
    assert sum(core["read_cost"] for core in cores) == ELEMENTS * 4
    assert sum(core["vector_repeats"] for core in cores) == 16
    (core,) = outcomes["scalar_in_between"]["report"]["cores"]
    assert (core["instructions"]["S"], core["cache_lines"]) == (14, 1)
    # Ten elements lie in two sectors; then a line of the cache.
    assert (core["read_bytes"], core["read_cost"]) == (40, 2 * 32 + 64)


def test_the_seed_decides_the_order_of_cores(program: Path) -> None:
    def order(seed: int) -> tuple[int, ...]:
        report = run(program, "--seed", str(seed), "doubled_through_queues")
        return tuple(c["core"] for c in report["doubled_through_queues"]["report"]["cores"])

    orders = {seed: order(seed) for seed in range(6)}
    assert all(sorted(cores) == [0, 1, 2] for cores in orders.values())
    assert len(set(orders.values())) > 1
    assert order(3) == orders[3]


def test_what_the_chip_lacks_does_not_compile() -> None:
    source = FOLDER / "does_not_compile.cpp"
    lines = source.read_text().splitlines()
    marked = {
        number
        for number, line in enumerate(lines, 1)
        if "MKV_WRONG(" in line and not line.startswith("#")
    }
    assert len(marked) > 30
    run_compiler(["-fsyntax-only", "-DMKV_ONLY_RIGHT", source])
    with pytest.raises(BuildFailedError) as failed:
        run_compiler(["-fsyntax-only", "-fdiagnostics-color=never", source])
    refused = {int(line) for line in re.findall(r"does_not_compile\.cpp:(\d+)", str(failed.value))}
    assert marked <= refused, [lines[number - 1] for number in sorted(marked - refused)]
    assert "give twice the count" in str(failed.value)
