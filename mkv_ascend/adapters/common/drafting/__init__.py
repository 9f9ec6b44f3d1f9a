# SPDX-License-Identifier: Apache-2.0
"""What proposers of several hosts share."""
