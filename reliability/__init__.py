# SPDX-License-Identifier: Apache-2.0
"""Programs that look for wrong tokens, lost requests and hangs beyond what tests name."""
