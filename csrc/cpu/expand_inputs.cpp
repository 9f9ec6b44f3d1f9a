// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <algorithm>

namespace mkv::ops {

namespace {

// One request's part of the input and of the output.
struct Part {
  int64_t request;
  int64_t start;   // in the input
  int64_t length;  // in the input
  int64_t kept;    // tokens that were not rejected
  int64_t copied;  // of those, the ones that the output shows
  int64_t first_position;
  int64_t out_start;
  int64_t out_length;
};

class Expansion {
 public:
  explicit Expansion(const ExpandInputs& inputs) : in_(inputs) {}

  void write() const {
    const int64_t live =
        in_.num_tokens > 0 ? std::clamp<int64_t>(in_.num_requests, 0, in_.num_rows) : 0;
    int64_t end = 0;
    int64_t out_end = 0;
    in_.out_query_start_loc[0] = 0;
    for (int64_t request = 0; request < live; ++request) {
      const Part part = part_of(request);
      write_request(part);
      write_rows(part);
      end = part.start + part.length;
      out_end = part.out_start + part.out_length;
    }
    for (int64_t request = live; request < in_.num_rows; ++request) {
      write_padding_request(request, out_end);
    }
    write_padding_rows(out_end, in_.num_out_tokens);
    if (in_.hidden_rows != nullptr) {
      std::fill(
          in_.hidden_rows + std::min(end, in_.num_tokens), in_.hidden_rows + in_.num_tokens, -1);
    }
  }

 private:
  Part part_of(int64_t request) const {
    Part part{};
    const int64_t more = in_.sampled - (in_.shift ? 1 : 0);
    part.request = request;
    part.start = in_.query_start_loc[request];
    part.length = in_.query_start_loc[request + 1] - part.start;
    part.kept = part.length - (in_.num_rejected ? in_.num_rejected[request] : 0);
    part.first_position = in_.positions[inside(part.start)];
    part.copied = part.kept - (in_.shift ? 1 : 0);
    part.out_start = part.start + request * more;
    part.out_length = part.length + more;
    return part;
  }

  int64_t inside(int64_t token) const {
    return std::clamp<int64_t>(token, 0, in_.num_tokens - 1);
  }

  void write_request(const Part& part) const {
    const int64_t request = part.request;
    for (int64_t step = 0; step < in_.sampled; ++step) {
      in_.sample_indices[request * in_.sampled + step] =
          static_cast<int32_t>(part.out_start + part.copied + step);
    }
    in_.out_query_start_loc[request + 1] = static_cast<int32_t>(part.out_start + part.out_length);
    in_.lengths[request] = static_cast<int32_t>(part.first_position + part.out_length);
    in_.next_positions.set(request, part.first_position + part.copied);
    if (in_.hidden_rows != nullptr) {
      const int64_t first = inside(part.start);
      const int64_t end = std::min(part.start + part.length, in_.num_tokens);
      count_up(in_.hidden_rows + first, end - first, part.out_start + first - part.start);
    }
  }

  // Each output by itself, in runs: copied, counted up, or of one value.
  void write_rows(const Part& part) const {
    const int64_t row = part.out_start;
    const int64_t rows = std::min(part.out_length, in_.num_out_tokens - row);
    if (rows <= 0) {
      return;
    }
    const int64_t tokens = std::clamp<int64_t>(part.copied + in_.sampled, 0, rows);
    write_tokens(part, tokens, rows);
    int8_t* const rejected = in_.rejected_mask + row;
    int8_t* const masked = in_.masked_mask + row;
    for (int64_t place = 0; place < rows; ++place) {
      rejected[place] = place >= tokens ? 1 : 0;
      masked[place] = place > part.copied && place < tokens ? 1 : 0;
    }
    // Rows from `first` to `end` have a position that the draft can hold.
    const int64_t first = std::clamp<int64_t>(-part.first_position, 0, tokens);
    const int64_t end = std::clamp(in_.max_model_len - part.first_position, first, tokens);
    write_nowhere(row, row + first);
    write_nowhere(row + end, row + rows);
    in_.out_positions.count_up(row + first, end - first, part.first_position + first);
    for (size_t axis = 0; axis < in_.rope_positions.size(); ++axis) {
      write_rope(part, axis, first, end);
    }
    for (size_t group = 0; group < in_.groups.size(); ++group) {
      int32_t* slots = in_.slots + static_cast<int64_t>(group) * in_.slot_stride + row;
      write_slots(in_.groups[group], part.request, part.first_position, first, end, slots);
    }
  }

  void write_tokens(const Part& part, int64_t tokens, int64_t rows) const {
    int32_t* out = in_.out_token_ids + part.out_start;
    const int64_t copied = std::clamp<int64_t>(part.copied, 0, tokens);
    const int64_t source = part.start + (in_.shift ? 1 : 0);
    for (int64_t place = 0; place < copied; ++place) {
      out[place] = static_cast<int32_t>(in_.token_ids[inside(source + place)]);
    }
    if (copied < tokens) {
      out[copied] = static_cast<int32_t>(in_.next_token_ids[part.request]);
      fill(out + copied + 1, tokens - copied - 1, static_cast<int32_t>(in_.parallel_token_id));
    }
    fill(out + tokens, rows - tokens, static_cast<int32_t>(in_.padding_token_id));
  }

  void write_rope(const Part& part, size_t axis, int64_t first, int64_t end) const {
    const Indices& given = in_.rope_positions[axis];
    const OutIndices& out = in_.out_rope_positions[axis];
    const int64_t kept = std::clamp(part.kept, first, end);
    for (int64_t place = first; place < kept; ++place) {
      out.set(part.out_start + place, given[inside(part.start + place)]);
    }
    const int64_t last = given[inside(part.start + part.kept - 1)];
    out.count_up(part.out_start + kept, end - kept, last + kept - (part.kept - 1));
  }

  // Rows without a place in the cache.
  void write_nowhere(int64_t row, int64_t end) const {
    if (row >= end) {
      return;
    }
    in_.out_positions.fill(row, end - row, 0);
    for (const OutIndices& axis : in_.out_rope_positions) {
      axis.fill(row, end - row, 0);
    }
    for (size_t group = 0; group < in_.groups.size(); ++group) {
      fill(
          in_.slots + static_cast<int64_t>(group) * in_.slot_stride + row, end - row, kPaddingSlot);
    }
  }

  // Consecutive within each block.
  static void write_slots(
      const Group& group, int64_t request, int64_t first_position, int64_t place, int64_t end,
      int32_t* slots) {
    while (place < end) {
      const int64_t position = first_position + place;
      const int64_t column = group.column(position);
      if (column >= group.columns || request >= group.rows) {
        fill(slots + place, end - place, kPaddingSlot);
        return;
      }
      const int64_t offset = position - column * group.block_size;
      const int64_t count = std::min(group.block_size - offset, end - place);
      const int64_t block = group.table[request * group.row_stride + column];
      count_up(slots + place, count, block * group.block_size + offset);
      place += count;
    }
  }

  void write_padding_rows(int64_t row, int64_t end) const {
    if (row < end) {
      fill(in_.out_token_ids + row, end - row, static_cast<int32_t>(in_.padding_token_id));
      fill<int8_t>(in_.rejected_mask + row, end - row, 1);
      fill<int8_t>(in_.masked_mask + row, end - row, 0);
      write_nowhere(row, end);
    }
  }

  void write_padding_request(int64_t request, int64_t out_end) const {
    for (int64_t step = 0; step < in_.sampled; ++step) {
      in_.sample_indices[request * in_.sampled + step] = 0;
    }
    in_.out_query_start_loc[request + 1] = static_cast<int32_t>(out_end);
    in_.lengths[request] = 0;
    in_.next_positions.set(request, 0);
  }

  const ExpandInputs& in_;
};

}  // namespace

void expand_inputs(const ExpandInputs& inputs) {
  Expansion(inputs).write();
}

}  // namespace mkv::ops
