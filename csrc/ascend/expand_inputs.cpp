// SPDX-License-Identifier: Apache-2.0
// expand_inputs: the first pass of a proposal (mkv_ascend/ops says what it is).
//
// Cores share the output's rows, the input's rows (for hidden_rows) and the requests evenly. Within
// a request everything is a run: copied tokens, consecutive positions, consecutive slots in a
// block.
#include "common.h"
#include "launch_size.h"
#include "launchers.h"
#include "ascendc_launch.h"
#include "request_values.h"
#include "run_store.h"

namespace mkv {

constexpr int64_t kLeastRowsOfACore = 16;

// One request's part of the input and of the output, and what its rows hold.
struct Part {
  int64_t request;
  int64_t start;
  int64_t kept;
  int64_t copied;
  int64_t tokens;  // rows that are no padding
  int64_t out_start;
  int64_t out_end;
  int64_t first_position;
};

class ExpandInputsKernel {
 public:
  __aicore__ inline explicit ExpandInputsKernel(const MkvExpandInputs& in)
      : in_(in),
        positions_(in.positions, in.wide_positions != 0),
        rejected_(in.num_rejected, in.wide_rejected != 0) {
    more_ = in.sampled - in.shift;
    live_ = in.num_tokens > 0 && in.num_rows > 0
                ? Between(GlobalAt<int32_t>(in.num_requests).GetValue(0), 0, in.num_rows)
                : 0;
    pipe_.InitBuffer(start_buffer_, RoundUp((in.num_rows + 1) * sizeof(int32_t), kBlockBytes));
    starts_ = start_buffer_.Get<int32_t>();
    if (live_ > 0) {
      const auto bytes = static_cast<uint32_t>((live_ + 1) * sizeof(int32_t));
      DataCopyPad(
          starts_, GlobalAt<int32_t>(in.query_start_loc), DataCopyExtParams{1, bytes, 0, 0, 0},
          DataCopyPadExtParams<int32_t>{false, 0, 0, 0});
      Sync<HardEvent::MTE2_S>();
      end_ = starts_.GetValue(live_);
    }
    out_end_ = end_ + live_ * more_;
    runs_.Init(pipe_, in.padding_token_id, in.parallel_token_id);
  }

  __aicore__ inline void Run() {
    WriteRows(Share(in_.num_out_tokens, 0), Share(in_.num_out_tokens, 1));
    if (in_.hidden_rows != nullptr) {
      WriteHiddenRows(Share(in_.num_tokens, 0), Share(in_.num_tokens, 1));
    }
    runs_.Flush();
    WriteRequests(Share(in_.num_rows, 0), Share(in_.num_rows, 1));
    if (GetBlockIdx() == 0) {
      runs_.Fill(Filler::kZero, 1, At(in_.out_query_start_loc, 0, false), false);
    }
  }

 private:
  // Where this core's part of `count` begins (end = 0) or ends (end = 1).
  __aicore__ inline int64_t Share(int64_t count, int64_t end) const {
    return count * (GetBlockIdx() + end) / GetBlockNum();
  }

  static __aicore__ inline GM_ADDR At(GM_ADDR address, int64_t place, bool wide) {
    return address + place * (wide ? 8 : 4);
  }

  // The live request whose part (of the output, or of the input) holds a row.
  __aicore__ inline int64_t RequestOf(int64_t row, int64_t more) const {
    int64_t low = 0;
    int64_t high = live_ - 1;
    while (low < high) {
      const int64_t middle = (low + high + 1) / 2;
      if (starts_.GetValue(static_cast<uint32_t>(middle)) + middle * more <= row) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    return low;
  }

  __aicore__ inline Part PartOf(int64_t request) const {
    Part part;
    part.request = request;
    part.start = starts_.GetValue(static_cast<uint32_t>(request));
    const int64_t length = starts_.GetValue(static_cast<uint32_t>(request + 1)) - part.start;
    part.kept = length - (in_.num_rejected != nullptr ? rejected_.Get(request) : 0);
    part.copied = part.kept - in_.shift;
    part.tokens = part.copied + in_.sampled;
    part.out_start = part.start + request * more_;
    part.out_end = part.out_start + length + more_;
    part.first_position = positions_.Get(part.start);
    return part;
  }

  __aicore__ inline void WriteRows(int64_t row, int64_t end) {
    if (row < Least(end, out_end_)) {
      Part part = PartOf(RequestOf(row, more_));
      while (row < Least(end, out_end_)) {
        if (row >= part.out_end) {
          part = PartOf(part.request + 1);
        }
        const int64_t until = Least(Least(part.out_end, end), row + kPieceRows);
        WritePiece(part, row, until);
        row = until;
      }
    }
    WritePadding(row, end);
  }

  // Rows [row, until) of one request's part, at most kPieceRows.
  __aicore__ inline void WritePiece(const Part& part, int64_t row, int64_t until) {
    const int64_t place = row - part.out_start;
    const int64_t token_end = Between(part.out_start + part.tokens, row, until);
    const int64_t limit = part.out_start + in_.max_model_len - part.first_position;
    const int64_t valid_end = Between(limit, row, token_end);
    WriteTokens(part, row, token_end);
    runs_.Fill(Filler::kByteZero, token_end - row, in_.rejected_mask + row, false);
    const int64_t masked = Between(part.out_start + part.copied + 1, row, token_end);
    runs_.Fill(Filler::kByteZero, masked - row, in_.masked_mask + row, false);
    runs_.Fill(Filler::kByteOne, token_end - masked, in_.masked_mask + masked, false);
    runs_.Sequence(
        part.first_position + place, valid_end - row, At(in_.out_positions, row, WidePositions()),
        WidePositions());
    for (int64_t axis = 0; axis < in_.num_axes; ++axis) {
      WriteRope(part, axis, row, valid_end);
    }
    for (int64_t group = 0; group < in_.num_groups; ++group) {
      WriteSlots(part, group, row, valid_end);
    }
    WriteNowhere(valid_end, until);
    WriteNoTokens(token_end, until);
  }

  __aicore__ inline bool WidePositions() const {
    return in_.wide_out_positions != 0;
  }

  __aicore__ inline void WriteTokens(const Part& part, int64_t row, int64_t token_end) {
    const int64_t next = part.out_start + part.copied;
    const int64_t copied_end = Between(next, row, token_end);
    const bool wide = in_.wide_token_ids != 0;
    const int64_t source = part.start + in_.shift + row - part.out_start;
    runs_.Copy(
        At(in_.token_ids, source, wide), wide, copied_end - row, At(in_.out_token_ids, row, false),
        false);
    if (copied_end == next && next < token_end) {
      const bool wide_next = in_.wide_next_token_ids != 0;
      runs_.Copy(
          At(in_.next_token_ids, part.request, wide_next), wide_next, 1,
          At(in_.out_token_ids, next, false), false);
    }
    const int64_t parallel = Between(next + 1, row, token_end);
    runs_.Fill(
        Filler::kParallelToken, token_end - parallel, At(in_.out_token_ids, parallel, false),
        false);
  }

  __aicore__ inline void WriteRope(const Part& part, int64_t axis, int64_t row, int64_t valid_end) {
    const bool wide = in_.wide_rope_positions != 0;
    const bool wide_out = in_.wide_out_rope_positions != 0;
    const int64_t kept_end = Between(part.out_start + part.kept, row, valid_end);
    const int64_t source = axis * in_.rope_stride + part.start;
    const int64_t target = axis * in_.out_rope_stride;
    runs_.Copy(
        At(in_.rope_positions, source + row - part.out_start, wide), wide, kept_end - row,
        At(in_.out_rope_positions, target + row, wide_out), wide_out);
    if (kept_end < valid_end) {
      const int64_t last = ScalarIndices(in_.rope_positions, wide).Get(source + part.kept - 1);
      const int64_t beyond = kept_end - part.out_start - (part.kept - 1);
      runs_.Sequence(
          last + beyond, valid_end - kept_end,
          At(in_.out_rope_positions, target + kept_end, wide_out), wide_out);
    }
  }

  __aicore__ inline void WriteSlots(
      const Part& part, int64_t index, int64_t row, int64_t valid_end) {
    const Group group = ReadGroup(groups_, index);
    const auto table =
        GlobalAt<int32_t>(reinterpret_cast<int64_t>(group.table + part.request * group.row_stride));
    const int64_t slots = index * in_.slot_stride;
    // Rows past the table have no slots.
    while (row < valid_end && part.request < in_.table_rows) {
      const int64_t position = part.first_position + row - part.out_start;
      const int64_t column =
          group.exponent >= 0 ? position >> group.exponent : position / group.block_size;
      if (column >= group.columns) {
        break;
      }
      const int64_t offset = position - column * group.block_size;
      const int64_t count = Least(group.block_size - offset, valid_end - row);
      const int64_t first = table.GetValue(column) * group.block_size + offset;
      runs_.Sequence(first, count, At(in_.slots, slots + row, false), false);
      row += count;
    }
    runs_.Fill(Filler::kMinusOne, valid_end - row, At(in_.slots, slots + row, false), false);
  }

  // Rows without a place in the cache: past the maximum length, or padding.
  __aicore__ inline void WriteNowhere(int64_t row, int64_t end) {
    runs_.Fill(
        Filler::kZero, end - row, At(in_.out_positions, row, WidePositions()), WidePositions());
    const bool wide = in_.wide_out_rope_positions != 0;
    for (int64_t axis = 0; axis < in_.num_axes; ++axis) {
      runs_.Fill(
          Filler::kZero, end - row,
          At(in_.out_rope_positions, axis * in_.out_rope_stride + row, wide), wide);
    }
    for (int64_t group = 0; group < in_.num_groups; ++group) {
      runs_.Fill(
          Filler::kMinusOne, end - row, At(in_.slots, group * in_.slot_stride + row, false), false);
    }
  }

  __aicore__ inline void WriteNoTokens(int64_t row, int64_t end) {
    runs_.Fill(Filler::kPaddingToken, end - row, At(in_.out_token_ids, row, false), false);
    runs_.Fill(Filler::kByteOne, end - row, in_.rejected_mask + row, false);
    runs_.Fill(Filler::kByteZero, end - row, in_.masked_mask + row, false);
  }

  __aicore__ inline void WritePadding(int64_t row, int64_t end) {
    for (; row < end; row += kPieceRows) {
      const int64_t until = Least(end, row + kPieceRows);
      WriteNowhere(row, until);
      WriteNoTokens(row, until);
    }
  }

  // hidden_rows[i] = i + the rows that the requests before made room for.
  __aicore__ inline void WriteHiddenRows(int64_t row, int64_t end) {
    const int64_t live_end = Least(end, end_);
    while (row < live_end) {
      const int64_t request = RequestOf(row, 0);
      const int64_t after = starts_.GetValue(static_cast<uint32_t>(request + 1));
      const int64_t until = Least(Least(after, live_end), row + kPieceRows);
      runs_.Sequence(row + request * more_, until - row, At(in_.hidden_rows, row, false), false);
      row = until;
    }
    for (; row < end; row += kPieceRows) {
      runs_.Fill(
          Filler::kMinusOne, Least(end - row, kPieceRows), At(in_.hidden_rows, row, false), false);
    }
  }

  // What there is one of per request: by the scalar unit, a handful of numbers each.
  __aicore__ inline void WriteRequests(int64_t request, int64_t end) {
    if (request >= end) {
      return;
    }
    request_values_.Init(pipe_, in_.wide_next_positions != 0);
    const int64_t most = Most(1, Least(kRequestPiece, kMostSampledRows / in_.sampled));
    while (request < end) {
      const int64_t count = Least(most, end - request);
      for (int64_t place = 0; place < count; ++place) {
        SetRequest(request + place, place);
      }
      request_values_.Store(in_, request, count);
      request += count;
    }
  }

  __aicore__ inline void SetRequest(int64_t request, int64_t place) {
    if (request >= live_) {
      request_values_.Set(place, out_end_, 0, 0);
      request_values_.SetSampled(place, in_.sampled, 0, 0);
      return;
    }
    const Part part = PartOf(request);
    request_values_.Set(
        place, part.out_end, part.first_position + part.out_end - part.out_start,
        part.first_position + part.copied);
    request_values_.SetSampled(place, in_.sampled, part.out_start + part.copied, 1);
  }

  const MkvExpandInputs& in_;
  TPipe pipe_;
  TBuf<TPosition::VECIN> start_buffer_;
  LocalTensor<int32_t> starts_;
  RunStore runs_;
  RequestValues request_values_;
  ScalarIndices positions_;
  ScalarIndices rejected_;
  GlobalTensor<int64_t> groups_ = GlobalAt<int64_t>(in_.group_table);
  int64_t more_ = 0;
  int64_t live_ = 0;
  int64_t end_ = 0;
  int64_t out_end_ = 0;
};

}  // namespace mkv

// The signature is written out: the build finds it in the text to make the launch from it.
extern "C" __global__ __aicore__ void mkv_expand_inputs_kernel(
    GM_ADDR token_ids, GM_ADDR positions, GM_ADDR rope_positions, GM_ADDR next_token_ids,
    GM_ADDR query_start_loc, GM_ADDR num_rejected, GM_ADDR num_requests, GM_ADDR group_table,
    GM_ADDR out_token_ids, GM_ADDR out_positions, GM_ADDR out_rope_positions, GM_ADDR rejected_mask,
    GM_ADDR masked_mask, GM_ADDR sample_indices, GM_ADDR hidden_rows, GM_ADDR out_query_start_loc,
    GM_ADDR lengths, GM_ADDR next_positions, GM_ADDR slots, const int64_t num_rows,
    const int64_t num_tokens, const int64_t num_out_tokens, const int64_t num_groups,
    const int64_t table_rows, const int64_t num_axes, const int64_t sampled,
    const int64_t max_model_len, const int64_t rope_stride, const int64_t out_rope_stride,
    const int64_t slot_stride, const int32_t shift, const int32_t padding_token_id,
    const int32_t parallel_token_id, const int32_t wide_token_ids, const int32_t wide_positions,
    const int32_t wide_rope_positions, const int32_t wide_next_token_ids,
    const int32_t wide_rejected, const int32_t wide_out_positions,
    const int32_t wide_out_rope_positions, const int32_t wide_next_positions) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  const MkvExpandInputs arguments{
      token_ids,
      positions,
      rope_positions,
      next_token_ids,
      query_start_loc,
      num_rejected,
      num_requests,
      group_table,
      out_token_ids,
      out_positions,
      out_rope_positions,
      rejected_mask,
      masked_mask,
      sample_indices,
      hidden_rows,
      out_query_start_loc,
      lengths,
      next_positions,
      slots,
      num_rows,
      num_tokens,
      num_out_tokens,
      num_groups,
      table_rows,
      num_axes,
      sampled,
      max_model_len,
      rope_stride,
      out_rope_stride,
      slot_stride,
      shift,
      padding_token_id,
      parallel_token_id,
      wide_token_ids,
      wide_positions,
      wide_rope_positions,
      wide_next_token_ids,
      wide_rejected,
      wide_out_positions,
      wide_out_rope_positions,
      wide_next_positions};
  mkv::ExpandInputsKernel kernel(arguments);
  kernel.Run();
}

extern "C" void mkv_ascend_expand_inputs(
    uint32_t cores, void* stream, const MkvExpandInputs* arguments) {
  const MkvExpandInputs& in = *arguments;
  // A core fills constants before it works: not for a handful of rows.
  const int64_t rows = in.num_out_tokens > in.num_tokens ? in.num_out_tokens : in.num_tokens;
  const uint32_t blocks = mkv::LaunchSize(rows, mkv::kLeastRowsOfACore, cores);
  MKV_LAUNCH(
      mkv_expand_inputs_kernel, blocks, stream, in.token_ids, in.positions, in.rope_positions,
      in.next_token_ids, in.query_start_loc, in.num_rejected, in.num_requests, in.group_table,
      in.out_token_ids, in.out_positions, in.out_rope_positions, in.rejected_mask, in.masked_mask,
      in.sample_indices, in.hidden_rows, in.out_query_start_loc, in.lengths, in.next_positions,
      in.slots, in.num_rows, in.num_tokens, in.num_out_tokens, in.num_groups, in.table_rows,
      in.num_axes, in.sampled, in.max_model_len, in.rope_stride, in.out_rope_stride, in.slot_stride,
      in.shift, in.padding_token_id, in.parallel_token_id, in.wide_token_ids, in.wide_positions,
      in.wide_rope_positions, in.wide_next_token_ids, in.wide_rejected, in.wide_out_positions,
      in.wide_out_rope_positions, in.wide_next_positions);
}
