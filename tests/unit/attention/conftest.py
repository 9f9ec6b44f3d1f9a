# SPDX-License-Identifier: Apache-2.0
"""The catalog of every test is the one that this package ships."""

import pytest

from mkv_ascend.attention import catalog


@pytest.fixture(autouse=True)
def _catalog_as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    monkeypatch.setattr(catalog, "_ENTRIES", dict(catalog._ENTRIES))
    monkeypatch.setattr(catalog, "_ALIASES", dict(catalog._ALIASES))
