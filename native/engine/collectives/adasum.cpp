// The plan of an adasum allreduce, which plan_allreduce() adds on the thread that
// submits the operation. The two functions that run between the phases are called later
// by the executor, under the progress lock.
#include "engine/collectives/adasum.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "engine/collectives/adasum_weights.h"
#include "engine/collectives/direct.h"
#include "engine/collectives/validate.h"
#include "kernels/combine.h"
#include "kernels/products.h"

namespace bluecomm {
namespace {

// The part of one tensor that lies in this member's slice.
struct TensorPart {
  Range range;  // in the slice
  // The members whose slices hold parts of the tensor are first .. last.
  int first = 0;
  int last = 0;
  std::span<double> products{};  // of each of these members, in order
  bool is_summed = false;        // elements after the last tensor
};

std::vector<Range> tensors_of(const Call& call) {
  if (call.splits.empty()) return {{0, call.input.size()}};
  std::vector<Range> tensors;
  std::size_t offset = 0;
  for (const std::int64_t count : call.splits) {
    const std::size_t length = static_cast<std::size_t>(count) * item_size(call.dtype);
    tensors.push_back({offset, length});
    offset += length;
  }
  return tensors;
}

bool overlap(Range a, Range b) {
  return std::max(a.offset, b.offset) < std::min(a.end(), b.end());
}

Range within(Range slice, Range range) {
  const std::size_t begin = std::max(slice.offset, range.offset);
  return {begin - slice.offset, std::min(slice.end(), range.end()) - begin};
}

std::vector<TensorPart> parts_of(const std::vector<Range>& tensors,
                                 const std::vector<Range>& slices, int me) {
  const Range mine = slices[me];
  std::vector<TensorPart> parts;
  for (const Range tensor : tensors) {
    if (!overlap(tensor, mine)) continue;
    TensorPart part{.range = within(mine, tensor), .first = me, .last = me};
    const int n = static_cast<int>(slices.size());
    while (part.first > 0 && overlap(tensor, slices[part.first - 1])) --part.first;
    while (part.last + 1 < n && overlap(tensor, slices[part.last + 1])) ++part.last;
    parts.push_back(part);
  }
  const std::size_t end = tensors.empty() ? 0 : tensors.back().end();
  if (end < mine.end()) {
    const Range rest{end, mine.end() - end};
    parts.push_back({.range = within(mine, rest), .is_summed = true});
  }
  return parts;
}

// The computations on this member's slice between the phases. Refers to memory of the
// call and of the plan, which must outlive it.
class Slice {
 public:
  Slice(std::vector<const std::byte*> inputs, std::vector<TensorPart> parts,
        std::span<std::byte> output, const Call& call, int me)
      : inputs_(std::move(inputs)),
        parts_(std::move(parts)),
        output_(output),
        dtype_(call.dtype),
        factor_(call.prescale * call.postscale),
        me_(me) {}

  // Computes this member's part of the inner products.
  void multiply() const {
    for (const TensorPart& part : parts_) {
      if (part.is_summed) continue;
      const std::size_t count = pair_count(inputs_.size());
      const std::span<double> mine = part.products.subspan(
          static_cast<std::size_t>(me_ - part.first) * count, count);
      std::fill(mine.begin(), mine.end(), 0.0);
      add_products(mine, inputs_at(part), part.range.length, dtype_);
    }
  }

  // Writes the weighted sum of the inputs to the output.
  void combine() const {
    for (const TensorPart& part : parts_) {
      const std::vector<double> weights = weights_of(part);
      std::vector<Term> terms;
      for (const std::byte* input : inputs_at(part)) {
        terms.push_back({input, weights[terms.size()]});
      }
      combine_weighted(part.range.of(output_), terms, factor_, dtype_);
    }
  }

 private:
  std::vector<const std::byte*> inputs_at(const TensorPart& part) const {
    std::vector<const std::byte*> inputs = inputs_;
    for (const std::byte*& input : inputs) input += part.range.offset;
    return inputs;
  }

  std::vector<double> weights_of(const TensorPart& part) const {
    const std::size_t n = inputs_.size();
    if (part.is_summed) return std::vector<double>(n, 1.0);
    // Summed in the order of the members, so that all of them get the same bits.
    std::vector<double> total(pair_count(n), 0.0);
    for (std::size_t k = 0; k < part.products.size(); ++k) {
      total[k % total.size()] += part.products[k];
    }
    return adasum_weights(total, n);
  }

  const std::vector<const std::byte*> inputs_;  // each member's data of this slice
  const std::vector<TensorPart> parts_;
  const std::span<std::byte> output_;
  const DType dtype_;
  const double factor_;
  const int me_;
};

// Gives each part memory for its products, from the start of the plan's scratch memory.
void place_products(std::vector<TensorPart>& parts, const Plan& plan,
                    std::size_t count) {
  auto* next = reinterpret_cast<double*>(plan.scratch.get());
  for (TensorPart& part : parts) {
    if (part.is_summed) continue;
    const auto members = static_cast<std::size_t>(part.last - part.first + 1);
    part.products = {next, members * count};
    next += part.products.size();
  }
}

std::size_t products_nbytes(const std::vector<TensorPart>& parts, std::size_t count) {
  std::size_t numbers = 0;
  for (const TensorPart& part : parts) {
    if (!part.is_summed) numbers += (part.last - part.first + 1) * count;
  }
  return numbers * sizeof(double);
}

// Sends at most one message to each member, because two slices share at most one
// tensor.
void exchange_products(Phase& phase, const Team& team,
                       const std::vector<TensorPart>& parts, std::size_t count) {
  for (const TensorPart& part : parts) {
    if (part.is_summed) continue;
    const auto of = [&](int member) {
      return std::as_writable_bytes(
          part.products.subspan((member - part.first) * count, count));
    };
    for (int member = part.first; member <= part.last; ++member) {
      if (member == team.me) continue;
      const int peer = team.ranks[member];
      phase.sends.push_back({.peer = peer, .slot = team.slot, .bytes = of(team.me)});
      phase.gathers.push_back(copy_from(peer, team.slot, of(member)));
    }
  }
}

}  // namespace

void check_adasum(const Call& call) {
  std::size_t rest = call.input.size() / item_size(call.dtype);
  for (const std::int64_t count : call.splits) {
    if (count < 0 || static_cast<std::size_t>(count) > rest) {
      refuse(call, "expected nonnegative splits that add up to at most " +
                       std::to_string(call.input.size() / item_size(call.dtype)) +
                       " elements, got a split of " + std::to_string(count));
    }
    rest -= static_cast<std::size_t>(count);
  }
}

void add_adasum_allreduce(Plan& plan, const Team& team, const Call& call) {
  const std::vector<Range> slices = cut(call.input.size(), team.size());
  const Range mine = slices[team.me];
  const std::size_t count = pair_count(static_cast<std::size_t>(team.size()));
  std::vector<TensorPart> parts = parts_of(tensors_of(call), slices, team.me);
  const std::size_t for_products = products_nbytes(parts, count);
  plan.scratch_nbytes =
      for_products + static_cast<std::size_t>(team.size() - 1) * mine.length;
  plan.scratch = std::make_shared_for_overwrite<std::byte[]>(plan.scratch_nbytes);
  place_products(parts, plan, count);

  plan.phases.resize(3);
  std::vector<const std::byte*> inputs;
  std::byte* next = plan.scratch.get() + for_products;
  for (int i = 0; i < team.size(); ++i) {
    if (i == team.me) {
      inputs.push_back(mine.of(call.input).data());
      continue;
    }
    const int peer = team.ranks[i];
    plan.phases[0].sends.push_back(
        {.peer = peer, .slot = team.slot, .bytes = slices[i].of(call.input)});
    plan.phases[0].gathers.push_back(copy_from(peer, team.slot, {next, mine.length}));
    inputs.push_back(next);
    next += mine.length;
  }
  exchange_products(plan.phases[1], team, parts, count);
  add_direct_allgather(plan, 2, team, call.output, slices);

  const auto slice = std::make_shared<const Slice>(std::move(inputs), std::move(parts),
                                                   mine.of(call.output), call, team.me);
  plan.phases[1].prepare = [slice] { slice->multiply(); };
  plan.phases[2].prepare = [slice] { slice->combine(); };
}

}  // namespace bluecomm
