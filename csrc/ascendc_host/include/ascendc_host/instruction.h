// SPDX-License-Identifier: Apache-2.0
// One instruction of one pipe. Every byte that it touches is checked here, and nowhere else.
#ifndef MKV_ASCENDC_HOST_INSTRUCTION_H_
#define MKV_ASCENDC_HOST_INSTRUCTION_H_

#include <string>

#include "core.h"

namespace ascendc_host {

// Where a tensor lies in the unified buffer: an offset, and the buffer that it must stay in.
struct UbPlace {
  uint32_t at = 0;
  uint32_t buffer = 0;
  bool valid = false;
};

// Where a tensor lies in global memory. `limit` is the end that SetGlobalBuffer was told, if any.
struct GmPlace {
  uint64_t at = 0;
  uint64_t base = 0;
  uint64_t limit = 0;
};

class Instruction {
 public:
  Instruction(pipe_t pipe, const char* name, Where where)
      : core_(Core::OfThisThread()), pipe_(pipe), name_(name), where_(where) {
    access_.tick = core_.Issue(pipe);
    access_.name = name;
    access_.where = where;
  }

  Core& core() {
    return core_;
  }
  const char* name() const {
    return name_;
  }
  const Where& where() const {
    return where_;
  }

  [[noreturn]] void Fail(
      const char* kind, const std::string& message, const std::string& buffer = "") {
    core_.Fail(kind, std::string(name_) + ": " + message, where_, buffer, Name(pipe_));
  }
  void Add(const char* kind, const std::string& message, const std::string& buffer = "") {
    core_.Add(kind, std::string(name_) + ": " + message, where_, buffer, Name(pipe_));
  }

  // Unified buffer.
  void NeedAligned(const UbPlace& place) {
    NeedBuffer(place);
    if (place.at % kBlockBytes != 0) {
      Fail(
          "ub_alignment",
          "UB address " + std::to_string(place.at) + " (byte " +
              std::to_string(place.at - Begin(place)) +
              " of its buffer) is not a multiple of 32 bytes",
          BufferName(place));
    }
  }
  void Read(const UbPlace& place, uint64_t bytes) {
    Touch(place, bytes, false);
  }
  void Write(const UbPlace& place, uint64_t bytes) {
    Touch(place, bytes, true);
  }

  // Whether any of the bytes holds junk.
  bool IsUndefined(const UbPlace& place, uint64_t bytes) {
    const uint8_t* flags = core_.undefined(place.at);
    return std::memchr(flags, 1, bytes) != nullptr;
  }
  void NeedDefined(const UbPlace& place, uint64_t bytes, const char* use) {
    const auto* flags = core_.undefined(place.at);
    const auto* first = static_cast<const uint8_t*>(std::memchr(flags, 1, bytes));
    if (first != nullptr) {
      Add("undefined",
          std::string(use) + " byte " +
              std::to_string(place.at - Begin(place) + static_cast<uint64_t>(first - flags)) +
              " of the buffer, which nothing defined (never written, or padding of a copy)",
          BufferName(place));
    }
  }
  void SetUndefined(const UbPlace& place, uint64_t bytes, bool undefined) {
    std::memset(core_.undefined(place.at), undefined ? 1 : 0, bytes);
  }

  // Global memory.
  void Read(const GmPlace& place, uint64_t bytes) {
    NeedRegion(place, bytes, false);
    CheckGm(place.at, place.at + bytes, false);
    core_.device().shadow().MarkRead(place.at, place.at + bytes, access_, pipe_, core_.index());
  }
  void Write(const GmPlace& place, uint64_t bytes) {
    NeedRegion(place, bytes, true);
    CheckGm(place.at, place.at + bytes, true);
    NeedOwnLines(place.at, bytes);
    core_.device().shadow().MarkWrite(place.at, place.at + bytes, access_, pipe_, core_.index());
  }
  const Region& NeedRegion(const GmPlace& place, uint64_t bytes, bool write) {
    const Region* region = core_.device().Find(place.base);
    if (region == nullptr) {
      Fail("gm_unregistered", "address in no tensor of this launch");
    }
    const uint64_t end = place.limit != 0 ? std::min(place.limit, region->end) : region->end;
    if (place.at < region->begin || place.at > end || bytes > end - place.at) {
      const auto offset = static_cast<int64_t>(place.at - region->begin);
      Fail(
          "gm_bounds",
          std::to_string(bytes) + " bytes at byte " + std::to_string(offset) + " of a tensor of " +
              std::to_string(end - region->begin) + " bytes",
          region->name);
    }
    if (write && !region->writable) {
      Fail("gm_readonly", "writes an input", region->name);
    }
    return *region;
  }

 private:
  uint32_t Begin(const UbPlace& place) const {
    return core_.buffer(place.buffer).begin;
  }
  const std::string& BufferName(const UbPlace& place) const {
    return core_.buffer(place.buffer).name;
  }

  void NeedBuffer(const UbPlace& place) {
    if (!place.valid) {
      Fail("ub_bounds", "a LocalTensor that no buffer stands behind");
    }
  }

  void NeedInside(const UbPlace& place, uint64_t bytes) {
    NeedBuffer(place);
    const auto& buffer = core_.buffer(place.buffer);
    if (place.at < buffer.begin || place.at > buffer.end || bytes > buffer.end - place.at) {
      Fail(
          "ub_bounds",
          std::to_string(bytes) + " bytes at byte " +
              std::to_string(static_cast<int64_t>(place.at) - static_cast<int64_t>(buffer.begin)) +
              " of a buffer of " + std::to_string(buffer.end - buffer.begin) + " bytes",
          buffer.name);
    }
  }

  void Touch(const UbPlace& place, uint64_t bytes, bool write) {
    NeedInside(place, bytes);
    core_.shadow().ForEach(
        place.at, place.at + bytes, [&](const Touched& touched, uint64_t begin, uint64_t) {
          CheckOrder(
              touched, write, "hazard", BufferName(place),
              static_cast<int64_t>(begin) - Begin(place));
        });
    if (write) {
      core_.shadow().MarkWrite(place.at, place.at + bytes, access_, pipe_, core_.index());
    } else {
      core_.shadow().MarkRead(place.at, place.at + bytes, access_, pipe_, core_.index());
    }
  }

  // What came before on this core must be known complete where the two touch the same bytes and
  // at least one writes.
  void CheckOrder(
      const Touched& touched, bool write, const char* kind, const std::string& buffer,
      int64_t byte) {
    if (touched.write.tick != 0) {
      NeedKnown(
          touched.write_pipe, touched.write, write ? "writes over" : "reads", "wrote", kind, buffer,
          byte);
    }
    if (!write) {
      return;
    }
    for (int pipe = 0; pipe < kPipes; ++pipe) {
      if (touched.reads[pipe].tick != 0) {
        NeedKnown(
            static_cast<pipe_t>(pipe), touched.reads[pipe], "writes over", "reads", kind, buffer,
            byte);
      }
    }
  }

  void NeedKnown(
      pipe_t other, const Access& earlier, const char* now, const char* before, const char* kind,
      const std::string& buffer, int64_t byte) {
    const bool same = other == pipe_ && earlier.tick == access_.tick;
    if (same || core_.Knows(pipe_, other, earlier.tick)) {
      return;
    }
    const std::string remedy =
        other == pipe_ ? std::string("PipeBarrier<PIPE_") + Name(pipe_) + ">"
                       : std::string("SetFlag and WaitFlag of ") + Name(other) + "_" + Name(pipe_);
    Add(kind,
        std::string(now) + " what " + earlier.name + " on pipe " + Name(other) + " at " +
            Text(earlier.where) + " " + before + " (byte " +
            std::to_string(std::max<int64_t>(0, byte)) + "), with no " + remedy + " between",
        buffer);
  }

  void CheckGm(uint64_t begin, uint64_t end, bool write) {
    const Region* region = core_.device().Find(begin);
    core_.device().shadow().ForEach(begin, end, [&](const Touched& touched, uint64_t at, uint64_t) {
      const auto byte = static_cast<int64_t>(at) - static_cast<int64_t>(region->begin);
      const bool own_write = touched.write_core == core_.index();
      const bool own_reads = touched.read_core == core_.index();
      if (touched.write_core >= 0 && !own_write) {
        AddRace(
            write ? "writes" : "reads", "wrote", touched.write_core, touched.write, byte,
            region->name);
      }
      if (write && touched.read_core >= 0 && (!own_reads || touched.read_by_several)) {
        AddRace("writes", "read", touched.read_core, touched.reads[PIPE_MTE2], byte, region->name);
      }
      Touched own = touched;
      if (!own_write) {
        own.write = Access();
      }
      if (!own_reads) {
        std::fill(own.reads, own.reads + kPipes, Access());
      }
      CheckOrder(own, write, "gm_hazard", region->name, byte);
    });
  }

  // A line that another core's scalar unit wrote to goes back with that core's view of these bytes.
  void NeedOwnLines(uint64_t at, uint64_t bytes) {
    if (!core_.device().has_scalar_writers()) {
      return;
    }
    ForEachLine(at, bytes, [&](uint64_t line) {
      const int64_t writer = core_.device().ScalarWriter(line);
      if (writer >= 0 && writer != core_.index()) {
        Add("core_race", "writes into a 64-byte cache line that the scalar unit of core " +
                             std::to_string(writer) + " writes to as well; one of them is lost");
      }
    });
  }

  void AddRace(
      const char* now, const char* before, int64_t other, const Access& access, int64_t byte,
      const std::string& region) {
    Add("core_race",
        std::string(now) + " byte " + std::to_string(std::max<int64_t>(0, byte)) + ", which core " +
            std::to_string(other) + " " + before +
            (access.tick != 0 ? " at " + Text(access.where) : std::string()),
        region);
  }

  Core& core_;
  pipe_t pipe_;
  const char* name_;
  Where where_;
  Access access_;
};

}  // namespace ascendc_host

#endif  // MKV_ASCENDC_HOST_INSTRUCTION_H_
