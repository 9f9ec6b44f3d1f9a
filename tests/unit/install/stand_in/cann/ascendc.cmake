# SPDX-License-Identifier: Apache-2.0
# A stand-in of CANN 9.1's ascendc.cmake: the functions that cmake/ascend.cmake calls, with the
# demands that asc-devkit's legacy_modules make of a project. g++ compiles for the CPU.

set(_stand_in ${CMAKE_CURRENT_LIST_DIR})
string(TOLOWER "${SOC_VERSION}" _chip)
if(NOT _chip MATCHES "^ascend910(b[1-4]|b2c|b4-1|_93(91|81|72|92|82|62))$")
  message(FATAL_ERROR "stand-in of CANN: SOC_VERSION ${SOC_VERSION} is not supported")
endif()
if(NOT EXISTS "${ASCEND_CANN_PACKAGE_PATH}" OR NOT RUN_MODE STREQUAL "npu")
  message(FATAL_ERROR "stand-in of CANN: ASCEND_CANN_PACKAGE_PATH or RUN_MODE is not set")
endif()
if(NOT CMAKE_C_COMPILER_VERSION)
  message(FATAL_ERROR "stand-in of CANN: the language C is not enabled")
endif()
if(CMAKE_CXX_COMPILER_LAUNCHER OR CMAKE_C_COMPILER_LAUNCHER)
  message(FATAL_ERROR "stand-in of CANN: ccache does not know CANN's compiler")
endif()

# As in CANN, options, definitions and includes are given after the library: they are read late.
function(ascendc_library target type)
  set(folder ${CMAKE_BINARY_DIR}/auto_gen/${target})
  add_library(${target}_interface INTERFACE)
  set(tool ${ASCEND_PYTHON_EXECUTABLE} ${_stand_in}/kernels.py)
  set(generated)
  foreach(source ${ARGN})
    get_filename_component(name ${source} NAME)
    list(APPEND generated ${folder}/${name})
  endforeach()
  add_custom_command(
    OUTPUT ${folder}/host_stub.cpp ${generated}
    COMMAND ${tool} generate --folder ${folder} --chip ${_chip} --compiler ${CMAKE_CXX_COMPILER}
      --cann ${ASCEND_CANN_PACKAGE_PATH}
      "--includes=$<TARGET_PROPERTY:${target}_interface,INCLUDES>"
      "--definitions=$<TARGET_PROPERTY:${target}_interface,DEFINITIONS>"
      "--options=$<TARGET_PROPERTY:${target}_interface,OPTIONS>"
      ${ARGN}
    DEPENDS ${ARGN} VERBATIM)
  add_library(${target}_host OBJECT ${generated})
  target_compile_options(${target}_host PRIVATE -std=c++17 -w)
  add_library(${target} ${type} ${folder}/host_stub.cpp ${_stand_in}/runtime.cpp)
  target_include_directories(${target} PRIVATE ${ASCEND_CANN_PACKAGE_PATH}/include)
  add_dependencies(${target} ${target}_host)
  # The kernels' objects come in by a second link, read from the file that only make has.
  add_custom_command(TARGET ${target} POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E rm -f $<TARGET_FILE:${target}>
    COMMAND ${tool} link --root ${CMAKE_CURRENT_BINARY_DIR} --target ${target}
      "--objects=$<TARGET_OBJECTS:${target}_host>"
    VERBATIM)
endfunction()

function(ascendc_include_directories target scope)
  set_property(TARGET ${target}_interface APPEND PROPERTY INCLUDES ${ARGN})
endfunction()

function(ascendc_compile_definitions target scope)
  set_property(TARGET ${target}_interface APPEND PROPERTY DEFINITIONS ${ARGN})
endfunction()

function(ascendc_compile_options target scope)
  set_property(TARGET ${target}_interface APPEND PROPERTY OPTIONS ${ARGN})
endfunction()
