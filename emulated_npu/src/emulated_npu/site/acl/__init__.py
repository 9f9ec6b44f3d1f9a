# SPDX-License-Identifier: Apache-2.0
"""The emulated acl (CANN's Python interface); its content is in emulated_npu."""

import sys as _sys

from emulated_npu.modules import acl as _acl

_acl.install(_sys.modules[__name__])
__getattr__ = _acl.missing_attribute
