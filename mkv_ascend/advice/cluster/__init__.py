# SPDX-License-Identifier: Apache-2.0
"""Many engines under a load: which requests wait, and how long their tokens take. Pure."""
