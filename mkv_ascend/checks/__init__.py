# SPDX-License-Identifier: Apache-2.0
"""What a command asks for, as frozen facts, and what of it cannot be served."""
