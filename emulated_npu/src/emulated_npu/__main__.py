# SPDX-License-Identifier: Apache-2.0
"""``python -m emulated_npu`` is the command ``emulated-npu``."""

import sys

from emulated_npu.command import main

if __name__ == "__main__":
    sys.exit(main())
