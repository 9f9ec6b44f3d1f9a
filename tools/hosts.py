# SPDX-License-Identifier: Apache-2.0
"""The hosts that set-up installs: pairs of vLLM and vllm-ascend, each in a virtual environment.

Standard library only, and readable by Python 3.9: it runs before anything is installed.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Host:
    """A host, and how it is installed on a machine without an NPU.

    Attributes:
        vllm: version of vLLM, which is built from its sources as pure Python.
        vllm_ascend: version of vllm-ascend.
        from_sources: vllm-ascend has no wheel of this version.
        environment: folder of the virtual environment, in the clone.
        constraints: the complete lock of all else, in the clone.
    """

    vllm: str
    vllm_ascend: str
    from_sources: bool
    environment: str
    constraints: str

    def build_variables(self) -> dict[str, str]:
        """The environment variables that the builds from sources need."""
        # Without the override the version would read 0.23.0+empty, which is refused.
        variables = {"VLLM_VERSION_OVERRIDE": self.vllm, "VLLM_TARGET_DEVICE": "empty"}
        if self.from_sources:
            # vllm-ascend's asks for a chip, and would compile kernels with CANN.
            variables.update(SOC_VERSION="ascend910b1", COMPILE_CUSTOM_KERNELS="0")
        return variables


HOSTS = {
    "0.23": Host("0.23.0", "0.23.0", False, ".venv", "requirements/constraints.txt"),
    "0.30": Host("0.30.0", "0.30.0rc2", True, ".venv-0.30", "requirements/constraints_0_30.txt"),
}
"""What ``make HOST=...`` takes -> the host."""
DEFAULT = "0.23"


class UnknownHostError(ValueError):
    """The message is one sentence that names the hosts."""


def host_named(name: str) -> Host:
    """The host of this name.

    Raises:
        UnknownHostError: there is none.
    """
    if name not in HOSTS:
        known = " and ".join(
            f"{known} (vLLM {host.vllm} with vllm-ascend {host.vllm_ascend})"
            for known, host in HOSTS.items()
        )
        raise UnknownHostError(f"there is no host {name!r}: HOST is one of {known}")
    return HOSTS[name]
