# SPDX-License-Identifier: Apache-2.0
"""The emulated torch_npu: same names as the real one, on a device whose memory is host memory.

``mkv-ascend emulate`` puts this folder on PYTHONPATH. The content is in emulated_npu.
"""

import os as _os
import sys as _sys

# PyTorch loads device backends at the end of `import torch`, through the entry point that leads
# here. If torch_npu is imported first, that would come back into this unfinished module.
_autoload_choice = _os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
_os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
try:
    import torch as _torch  # noqa: F401
finally:
    if _autoload_choice is None:
        del _os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    else:
        _os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = _autoload_choice

from emulated_npu.modules import torch_npu_root as _root  # noqa: E402

_root.install(_sys.modules[__name__])
__getattr__ = _root.missing_attribute


def _autoload() -> None:
    """Entry point `torch.backends`: importing this module was all there was to do."""
