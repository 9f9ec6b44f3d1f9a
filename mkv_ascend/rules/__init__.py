# SPDX-License-Identifier: Apache-2.0
"""What this plugin does not serve, and faults of hosts that end late: judged before a start."""
