# SPDX-License-Identifier: Apache-2.0
# Target torch_libraries: headers and libraries of the torch that Python_EXECUTABLE imports.
#
# Not find_package(Torch): for a CUDA build of torch it demands a CUDA toolkit, which a laptop with
# the default wheel does not have, and the parts built here use no CUDA.

find_package(Python REQUIRED COMPONENTS Interpreter)

# Backend autoload is off so that an installed torch_npu (real or stand-in) is not imported here.
execute_process(
  COMMAND ${CMAKE_COMMAND} -E env TORCH_DEVICE_BACKEND_AUTOLOAD=0 ${Python_EXECUTABLE} -c
    "import os, torch; print(os.path.dirname(torch.__file__), torch.__version__, int(torch.compiled_with_cxx11_abi()), sep=';')"
  OUTPUT_VARIABLE torch_facts
  ERROR_VARIABLE torch_error
  RESULT_VARIABLE torch_result
  OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT torch_result EQUAL 0)
  message(FATAL_ERROR
    "${Python_EXECUTABLE} cannot import torch:\n${torch_error}\n"
    "Give the Python that vLLM runs in with -DPython_EXECUTABLE=..., or install torch into this one: "
    "on an Ascend host the release that torch-npu names, without an NPU 2.13.0.")
endif()
list(GET torch_facts 0 torch_folder)
list(GET torch_facts 1 torch_version)
list(GET torch_facts 2 torch_cxx11_abi)
message(STATUS "torch ${torch_version} in ${torch_folder}")

add_library(torch_libraries INTERFACE)
target_include_directories(torch_libraries SYSTEM INTERFACE
  ${torch_folder}/include
  ${torch_folder}/include/torch/csrc/api/include)
target_compile_definitions(torch_libraries INTERFACE _GLIBCXX_USE_CXX11_ABI=${torch_cxx11_abi})
# No rpath: Python imports torch first, so its libraries are already in the process.
target_link_libraries(torch_libraries INTERFACE
  ${torch_folder}/lib/libtorch_cpu.so
  ${torch_folder}/lib/libc10.so)
set(CMAKE_SKIP_RPATH ON)
