# SPDX-License-Identifier: Apache-2.0
# mkv_ascend beside vllm-ascend 0.23.0, for Ascend hosts:
#   docker build -t mkv-ascend .
# For an Atlas A3: --build-arg BASE=quay.io/ascend/vllm-ascend:v0.23.0-a3
# The base image brings CANN, torch-npu, vLLM and vllm-ascend. It is not for the emulated NPU, which
# refuses to run where CANN is installed (`make setup` is for that).
ARG BASE=quay.io/ascend/vllm-ascend:v0.23.0
FROM ${BASE}

# 0 leaves the native parts out.
ARG MKV_ASCEND_BUILD_OPS=1
ENV MKV_ASCEND_BUILD_OPS=${MKV_ASCEND_BUILD_OPS}

COPY . /opt/mkv_ascend
# Without dependencies and without build isolation: what the image brings must stay as it is. The
# image sets SOC_VERSION; set_env.sh says where CANN is.
RUN bash -c 'source /usr/local/Ascend/ascend-toolkit/set_env.sh && \
    pip install --no-cache-dir --no-build-isolation --no-deps /opt/mkv_ascend'

# Without the entry point, or with versions that do not fit, the build fails and not the first start.
RUN python -c "from importlib.metadata import entry_points as e; \
    assert 'mkv_ascend' in {p.name for p in e(group='vllm.platform_plugins')}" \
    && python -c "from mkv_ascend.plugin.versions import check_host; check_host()" \
    && mkv-ascend --version
