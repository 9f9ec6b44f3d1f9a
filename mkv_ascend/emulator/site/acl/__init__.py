# SPDX-License-Identifier: Apache-2.0
"""The emulated acl (CANN's Python interface); its content is in mkv_ascend.emulator."""

import sys as _sys

from mkv_ascend.emulator.modules import acl as _acl

_acl.install(_sys.modules[__name__])
__getattr__ = _acl.missing_attribute
