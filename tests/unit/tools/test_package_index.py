# SPDX-License-Identifier: Apache-2.0
"""pip's settings reach uv."""

import os
import sys

import pytest

import package_index


def test_each_setting_of_pip_has_its_variable_of_uv():
    listing = "\n".join(
        (
            "global.cert='/certificates.crt'",
            "global.extra-index-url='https://a.example/simple\\nhttps://b.example/simple'",
            "global.find-links='/one /two'",
            "global.index-url='https://pypi.example/simple'",
            "global.no-cache-dir='true'",
        )
    )
    assert package_index.uv_settings(listing) == {
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/certificates.crt",
        "UV_INDEX": "https://a.example/simple https://b.example/simple",
        "UV_FIND_LINKS": "/one,/two",
        "UV_DEFAULT_INDEX": "https://pypi.example/simple",
    }


@pytest.mark.parametrize("order", [1, -1])
def test_the_environment_wins_over_install_and_install_over_global(order):
    lines = ["global.index-url='g'", "install.index-url='i'", ":env:.index-url='e'"]
    listing = "\n".join(lines[::order])
    assert package_index.uv_settings(listing)["UV_DEFAULT_INDEX"] == "e"
    assert package_index.uv_settings("\n".join(lines[:2][::order]))["UV_DEFAULT_INDEX"] == "i"


def test_settings_of_other_commands_and_other_lines_count_for_nothing():
    listing = "download.index-url='d'\nnonsense\n"
    assert package_index.uv_settings(listing) == {"UV_INDEX_STRATEGY": "unsafe-best-match"}


def test_pip_itself_is_asked_and_what_is_set_for_uv_stays(monkeypatch):
    environment = {**os.environ, "PIP_INDEX_URL": "https://pip.example/simple"}
    found = package_index.uv_environment(sys.executable, environment)
    assert found["UV_DEFAULT_INDEX"] == "https://pip.example/simple"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://uv.example/simple")
    found = package_index.uv_environment(sys.executable, environment)
    assert found["UV_DEFAULT_INDEX"] == "https://uv.example/simple"
