# SPDX-License-Identifier: Apache-2.0
"""``python -m mkv_ascend``: the command ``mkv-ascend``."""

import sys

from mkv_ascend.cli import main

sys.exit(main())
