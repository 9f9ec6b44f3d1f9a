# SPDX-License-Identifier: Apache-2.0
"""torch_npu.op_plugin: a package; its content is the package ``atb``."""

__path__: list[str] = []
