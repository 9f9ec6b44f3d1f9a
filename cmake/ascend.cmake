# SPDX-License-Identifier: Apache-2.0
# The AscendC kernels for NPU tensors, by CANN's compiler: CANN 9.1, Ascend 910B and 910C. Wanted are
# ASCEND_HOME_PATH (CANN) and SOC_VERSION; setup.py looks whether they are there.
#
# No machine with CANN has built this yet. The same kernels and the same binding, but for
# npu_binding.cpp, are built and run for the CPU by csrc/ascend/CMakeLists.txt.

set(ASCEND_CANN_PACKAGE_PATH ${ASCEND_HOME_PATH})
set(RUN_MODE npu CACHE STRING "where CANN's CMake module builds kernels for")

# Where CANN keeps its module differs between releases.
foreach(folder
    tools/tikcpp/ascendc_kernel_cmake
    compiler/tikcpp/ascendc_kernel_cmake
    ascendc_devkit/tikcpp/samples/cmake)
  if(EXISTS ${ASCEND_HOME_PATH}/${folder}/ascendc.cmake)
    include(${ASCEND_HOME_PATH}/${folder}/ascendc.cmake)
    set(ascendc_module_found ON)
    break()
  endif()
endforeach()
if(NOT ascendc_module_found)
  message(FATAL_ERROR
    "There is no ascendc.cmake below ASCEND_HOME_PATH=${ASCEND_HOME_PATH}. Install CANN's toolkit "
    "(9.1 is what the kernels are written for), or build without them: MKV_ASCEND_BUILD_OPS=0.")
endif()

execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import os, torch_npu; print(os.path.dirname(torch_npu.__file__))"
  OUTPUT_VARIABLE torch_npu_folder
  RESULT_VARIABLE torch_npu_result
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT torch_npu_result EQUAL 0)
  message(FATAL_ERROR "${Python_EXECUTABLE} cannot import torch_npu, which launches go through.")
endif()

set(ascend_sources ${CMAKE_SOURCE_DIR}/csrc/ascend)
# Of ascendc_host only the launch macro: its kernel_operator.h must not hide CANN's.
configure_file(
  ${CMAKE_SOURCE_DIR}/csrc/ascendc_host/include/ascendc_launch.h
  ${CMAKE_BINARY_DIR}/ascend_include/ascendc_launch.h COPYONLY)

ascendc_library(mkv_ascend_npu_kernels STATIC
  ${ascend_sources}/draft_plan.cpp
  ${ascend_sources}/expand_inputs.cpp
  ${ascend_sources}/target_slots.cpp
  ${ascend_sources}/zero_blocks.cpp)
ascendc_include_directories(mkv_ascend_npu_kernels PRIVATE
  ${ascend_sources} ${CMAKE_BINARY_DIR}/ascend_include)
# The kernels hold every synchronisation themselves, so that ascendc_host can check it.
ascendc_compile_options(mkv_ascend_npu_kernels PRIVATE --cce-auto-sync=off)

add_library(mkv_ascend_npu MODULE ${ascend_sources}/npu_binding.cpp)
target_include_directories(mkv_ascend_npu SYSTEM PRIVATE
  ${torch_npu_folder}/include ${ASCEND_HOME_PATH}/include)
target_link_directories(mkv_ascend_npu PRIVATE ${torch_npu_folder}/lib ${ASCEND_HOME_PATH}/lib64)
target_link_libraries(mkv_ascend_npu PRIVATE
  mkv_ascend_torch mkv_ascend_npu_kernels torch_npu ascendcl)
set_target_properties(mkv_ascend_npu PROPERTIES PREFIX "" OUTPUT_NAME "_npu")
