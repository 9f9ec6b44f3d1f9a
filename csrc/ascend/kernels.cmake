# SPDX-License-Identifier: Apache-2.0
# The AscendC kernels, for CANN's compiler (cmake/ascend.cmake) and for the checker (CMakeLists.txt).
set(mkv_ascend_kernels draft_plan expand_inputs target_slots zero_blocks)
list(TRANSFORM mkv_ascend_kernels PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
list(TRANSFORM mkv_ascend_kernels APPEND .cpp)
