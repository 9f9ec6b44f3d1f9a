# SPDX-License-Identifier: Apache-2.0
"""torch_npu.op_plugin.atb: a package; its content is the module ``_atb_ops``."""

__path__: list[str] = []
