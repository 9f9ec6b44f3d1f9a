# SPDX-License-Identifier: Apache-2.0
"""Custom ops, ``torch.ops.mkv_ascend.*``: one file per op.

Each file holds the op's schema, a torch reference, its argument checks, and a function that calls
it. Importing such a file registers the op; importing this package imports nothing.
"""
