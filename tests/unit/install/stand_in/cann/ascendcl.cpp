// SPDX-License-Identifier: Apache-2.0
// libascendcl.so of the stand-in. Tests set what it answers in the environment.
#include <acl/acl.h>
#include <stdlib.h>

#include <vector>

namespace {

struct Region {
  const void* address;
  uint64_t bytes;
  int writable;
};
std::vector<Region> regions;
int allocations = 0;

}  // namespace

extern "C" {

const char* aclrtGetSocName() {
  const char* name = getenv("STAND_IN_CHIP");
  return name == nullptr || *name == '\0' ? nullptr : name;
}

const char* aclGetRecentErrMsg() {
  return getenv("STAND_IN_MESSAGE");
}

aclError aclrtGetDevice(int32_t* device) {
  *device = 0;
  return ACL_SUCCESS;
}

aclError aclGetDeviceCapability(uint32_t, aclDeviceInfo info, int64_t* value) {
  *value = info == ACL_DEVICE_INFO_VECTOR_CORE_NUM ? 40 : 20;
  return ACL_SUCCESS;
}

aclError aclrtMalloc(void** memory, size_t bytes, int) {
  ++allocations;
  *memory = malloc(bytes);
  return ACL_SUCCESS;
}

aclError aclrtFree(void* memory) {
  free(memory);
  return ACL_SUCCESS;
}

int stand_in_allocations() {
  return allocations;
}

// What the following launches may touch.
void stand_in_clear() {
  regions.clear();
}

void stand_in_tensor(const void* address, uint64_t bytes, int writable) {
  regions.push_back({address, bytes, writable});
}

int stand_in_region(int index, const void** address, uint64_t* bytes, int* writable) {
  if (index >= static_cast<int>(regions.size())) {
    return 0;
  }
  *address = regions[index].address;
  *bytes = regions[index].bytes;
  *writable = regions[index].writable;
  return 1;
}

}  // extern "C"
