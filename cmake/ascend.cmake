# SPDX-License-Identifier: Apache-2.0
# The AscendC kernels for NPU tensors, by CANN's compiler: CANN 9.1, Ascend 910B and 910C. setup.py
# looks whether all is there, and gives ASCEND_HOME_PATH (CANN), MKV_ASCENDC_MODULE (its
# ascendc.cmake), MKV_TORCH_NPU_FOLDER, SOC_VERSION and a Makefile generator.
#
# No machine with CANN has built this yet. The same kernels and the same binding, but for
# npu_binding.cpp, are built and run for the CPU by csrc/ascend/CMakeLists.txt;
# tests/unit/install builds this file with a stand-in of CANN.

# CANN's module asks for the version of the C compiler.
enable_language(C)
set(ASCEND_CANN_PACKAGE_PATH ${ASCEND_HOME_PATH})
set(RUN_MODE npu CACHE STRING "where CANN's CMake module builds kernels for")
include(${MKV_ASCENDC_MODULE})

set(ascend_sources ${CMAKE_SOURCE_DIR}/csrc/ascend)
# Of ascendc_host only the launch macro: its kernel_operator.h must not hide CANN's.
configure_file(
  ${CMAKE_SOURCE_DIR}/csrc/ascendc_host/include/ascendc_launch.h
  ${CMAKE_BINARY_DIR}/ascend_include/ascendc_launch.h COPYONLY)

include(${ascend_sources}/kernels.cmake)
ascendc_library(mkv_ascend_npu_kernels STATIC ${mkv_ascend_kernels})
ascendc_include_directories(mkv_ascend_npu_kernels PRIVATE
  ${ascend_sources} ${CMAKE_BINARY_DIR}/ascend_include)
# The kernels hold every synchronisation themselves, so that ascendc_host can check it.
ascendc_compile_options(mkv_ascend_npu_kernels PRIVATE --cce-auto-sync=off)
# Without CANN's dump nothing reads or writes what its stub allocates (see launch_watch.cpp).
ascendc_compile_definitions(mkv_ascend_npu_kernels PRIVATE ASCENDC_DUMP=0)

add_library(mkv_ascend_npu MODULE
  ${ascend_sources}/npu_binding.cpp
  ${ascend_sources}/launch_watch.cpp)
target_compile_definitions(mkv_ascend_npu PRIVATE MKV_BUILT_FOR="${SOC_VERSION}")
target_include_directories(mkv_ascend_npu SYSTEM PRIVATE
  ${MKV_TORCH_NPU_FOLDER}/include ${ASCEND_HOME_PATH}/include)
target_link_directories(mkv_ascend_npu PRIVATE
  ${MKV_TORCH_NPU_FOLDER}/lib ${ASCEND_HOME_PATH}/lib64)
target_link_libraries(mkv_ascend_npu PRIVATE
  torch_libraries mkv_ascend_npu_kernels torch_npu ascendcl)
# What CANN's stub calls goes through launch_watch.cpp; and the names of the static library stay in
# ours: vllm-ascend's kernels bring the same ones.
foreach(name
    AscendCheckSoCVersion
    RegisterAscendBinary
    LaunchAscendKernel
    AllocAscendMemDevice
    FreeAscendMemDevice)
  target_link_options(mkv_ascend_npu PRIVATE -Wl,--wrap=${name})
endforeach()
target_link_options(mkv_ascend_npu PRIVATE -Wl,--exclude-libs,libmkv_ascend_npu_kernels.a)
set_target_properties(mkv_ascend_npu PROPERTIES PREFIX "" OUTPUT_NAME "_npu")
