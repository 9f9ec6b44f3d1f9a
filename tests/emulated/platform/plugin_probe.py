# SPDX-License-Identifier: Apache-2.0
"""Says which platform and general plugins vLLM takes; run in a process of its own.

``python plugin_probe.py '{"order": "reversed", "without": [...], "versions": {...}}'`` prints one
line of JSON. ``order`` is the order in which vLLM discovers plugins, ``without`` names entry points
that are not installed, ``versions`` replaces installed versions, ``break_register`` makes
vllm-ascend's entry point something that cannot be replaced, ``break_platform`` makes our platform
entry point something that cannot be imported.
"""

import functools
import importlib.metadata
import json
import sys

CASE = json.loads(sys.argv[1])

found_entry_points = importlib.metadata.entry_points
found_version = importlib.metadata.version


def broken(point):
    value = "mkv_ascend.no_such_module:register"
    return importlib.metadata.EntryPoint(point.name, value, point.group)


def entry_points(**selection):
    if not selection.get("group", "").startswith("vllm."):
        return found_entry_points(**selection)
    points = [
        point
        for point in found_entry_points(**selection)
        if point.name not in CASE.get("without", ())
    ]
    if CASE.get("break_register"):
        module = sys.modules["vllm_ascend"]
        module.register = functools.partial(module.register)
    if CASE.get("break_platform") and selection["group"] == "vllm.platform_plugins":
        points = [broken(point) if point.name == "mkv_ascend" else point for point in points]
    return sorted(points, key=lambda point: point.name, reverse=CASE.get("order") == "reversed")


importlib.metadata.entry_points = entry_points
importlib.metadata.version = lambda name: CASE.get("versions", {}).get(name) or found_version(name)

if CASE.get("break_register"):
    import vllm_ascend  # noqa: F401  (0.30.0rc2 asks for the platform meanwhile)


def main():
    import vllm.plugins
    from vllm.platforms import current_platform

    called = []
    load_by_group = vllm.plugins.load_plugins_by_group

    def noting(group):
        plugins = load_by_group(group)
        called.extend(sorted(plugins))
        return plugins

    vllm.plugins.load_plugins_by_group = noting
    vllm.plugins.load_general_plugins()
    platform = type(current_platform)
    result = {
        "platform": f"{platform.__module__}.{platform.__qualname__}",
        "general": called,
        "global_patches": "vllm_ascend.patch.platform" in sys.modules,
    }
    print(json.dumps(result))


main()
