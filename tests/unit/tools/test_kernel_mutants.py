# SPDX-License-Identifier: Apache-2.0
"""The mutants of kernels: which ones there are, and the source that holds them all."""

from __future__ import annotations

import pytest

import mutate_kernels
from kernel_mutants import EQUIVALENT, find_mutants, with_switches

SOURCE = """// licence
class Kernel {
  void Run(const GlobalTensor<int32_t>& far) {
    pipe.InitBuffer(queue, 2, bytes);
    PipeBarrier<PIPE_V>();  // drop[this] is a comment
    queue.EnQue(t);
    t = queue.DeQue<int>();
    Copy(near[far.GetValue(at)], far[at], DataCopyExtParams{1, static_cast<int>(n), 0});
  }
};
"""


def test_each_kind_is_found() -> None:
    found = [(one.kind, one.change, one.line) for one in find_mutants("k.cpp", SOURCE)]
    assert found == [
        ("shrink", "- 1", 4), ("shrink", "- 32", 4), ("drop", "", 5), ("drop", "", 6),
        ("shift", "+ 8", 8), ("shift", "+ 1", 8), ("shift", "+ 1", 8), ("copy", "+ 4", 8),
    ]  # fmt: skip


def test_all_of_them_fit_into_one_source() -> None:
    text = with_switches(SOURCE, find_mutants("k.cpp", SOURCE))
    assert text.startswith("// licence\n#ifndef MKV_MUTANT\n")
    assert "queue,( 2) - 1 * (mkv_mutant == 1),( bytes) - 32 * (mkv_mutant == 2));" in text
    assert "if (mkv_mutant != 3) {     PipeBarrier<PIPE_V>(); }" in text
    assert "near[(far.GetValue((at) + 1 * (mkv_mutant == 6))) + 8 * (mkv_mutant == 5)]" in text
    assert text.count("mkv_mutant ") == 1 + 8


@pytest.mark.parametrize("file", mutate_kernels.all_files())
def test_what_is_called_equivalent_is_still_there(file: str) -> None:
    text = (mutate_kernels.KERNELS / file).read_text("utf-8")
    names = {mutant.name for mutant in find_mutants(file, text)}
    assert {name for name in EQUIVALENT if name.startswith(f"{file}: ")} <= names


def test_every_equivalent_mutant_has_a_file() -> None:
    assert {name.partition(":")[0] for name in EQUIVALENT} <= set(mutate_kernels.all_files())
