// SPDX-License-Identifier: Apache-2.0
// The part of CANN's runtime that ascendc_library puts into every library (libascendc_runtime.a).
#include <acl/acl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <string>

extern int (*stand_in_kernels[])(uint32_t, void**);

namespace {

uint32_t status(const char* variable) {
  const char* text = getenv(variable);
  return text == nullptr ? 0 : static_cast<uint32_t>(atoi(text));
}

// The 910B and the 910C take each other's kernels.
std::string build_of(const std::string& chip) {
  const bool served = strncasecmp(chip.c_str(), "ascend910b", 10) == 0 ||
                      strncasecmp(chip.c_str(), "ascend910_93", 12) == 0;
  return served && strcasecmp(chip.c_str(), "ascend910b") != 0 ? "c220" : chip;
}

}  // namespace

extern "C" {

bool AscendCheckSoCVersion(const char* built_for, char* message) {
  const std::string chip = aclrtGetSocName();
  if (build_of(chip) == build_of(built_for)) {
    return true;
  }
  strcpy(message, ("the socversion " + std::string(built_for) + " is not " + chip).c_str());
  return false;
}

uint32_t RegisterAscendBinary(const char*, size_t, uint32_t, void** handle) {
  const uint32_t result = status("STAND_IN_REGISTER");
  if (result == 0) {
    *handle = stand_in_kernels;
  }
  return result;
}

uint32_t LaunchAscendKernel(
    void*, uint64_t key, uint32_t blocks, void** arguments, uint32_t, const void*) {
  const uint32_t result = status("STAND_IN_LAUNCH");
  return result != 0 ? result : stand_in_kernels[key](blocks, arguments);
}

uint32_t AllocAscendMemDevice(void** memory, uint64_t bytes) {
  return aclrtMalloc(memory, bytes, 0);
}

uint32_t FreeAscendMemDevice(void* memory) {
  return aclrtFree(memory);
}

}  // extern "C"
