# SPDX-License-Identifier: Apache-2.0
"""What docs/matrix.json publishes."""

from __future__ import annotations

import matrix_pages


def test_no_published_cell_fails() -> None:
    """A cell works, or is refused with a reason, on each host and in graphs."""
    for published in matrix_pages.read()["cells"]:
        name = f"{published['target']}/{published['draft']}"
        hosts = [published, *published.get("hosts", {}).values()]
        for host in hosts[published["ours"] is None :]:
            assert host["ours"] in ("works", "refused"), name
            assert "fails" not in (host.get("graph"), host.get("hits")), name
            assert (host["ours"] == "refused") == bool(host["reason"]), name
