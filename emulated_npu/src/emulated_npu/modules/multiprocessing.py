# SPDX-License-Identifier: Apache-2.0
"""torch_npu.multiprocessing: a package; its content is the module ``reductions``."""

__path__: list[str] = []
