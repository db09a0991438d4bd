// The plan of an adasum allreduce, which plan_allreduce() adds on the thread that
// submits the operation. The two functions that run between the phases are called later
// by the executor, under the progress lock.
#include "engine/collectives/adasum.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

// Returns how many numbers a member computes from its part of a tensor.
constexpr std::size_t numbers_per_member(std::size_t inputs) {
  return inputs + pair_count(inputs);
}

// The part of one tensor that lies in this member's slice.
struct TensorPart {
  Range range;  // in the slice
  // The members whose slices hold parts of the tensor are first .. last.
  int first = 0;
  int last = 0;
  // The numbers of each of these members, in order: the exponents of the inputs, then
  // their products.
  std::span<double> numbers{};
  bool is_summed = false;  // elements after the last tensor

  std::span<double> of_member(int member, std::size_t inputs) const {
    const std::size_t count = numbers_per_member(inputs);
    return numbers.subspan(static_cast<std::size_t>(member - first) * count, count);
  }
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
      const std::size_t n = inputs_.size();
      const std::span<double> mine = part.of_member(me_, n);
      const std::vector<const std::byte*> inputs = inputs_at(part);
      std::vector<int> exponents;
      for (const std::byte* input : inputs) {
        exponents.push_back(row_exponent({input, part.range.length}, dtype_));
      }
      std::copy(exponents.begin(), exponents.end(), mine.begin());
      const std::span<double> products = mine.subspan(n);
      std::fill(products.begin(), products.end(), 0.0);
      add_products(products, inputs, exponents, part.range.length, dtype_);
    }
  }

  // Writes the weighted sum of the inputs to the output.
  void combine() const {
    for (const TensorPart& part : parts_) {
      const std::vector<ScaledNumber> weights = weights_of(part);
      std::vector<std::vector<std::byte>> divided;
      std::vector<Term> terms;
      for (const std::byte* input : inputs_at(part)) {
        const ScaledNumber& weight = weights[terms.size()];
        const auto whole =
            static_cast<double>(std::ldexp(weight.value, weight.exponent));
        if (std::isnormal(whole) || weight.value == 0.0L) {
          terms.push_back({input, whole});
          continue;
        }
        // The weight does not fit into a double, so the tensor is divided beforehand.
        const std::span<std::byte> copy = divided.emplace_back(part.range.length);
        const ScalePair scale = divide_by_power(-weight.exponent);
        copy_scaled(copy, {input, part.range.length}, scale.first, dtype_);
        copy_scaled(copy, copy, scale.second, dtype_);
        terms.push_back({divided.back().data(), static_cast<double>(weight.value)});
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

  // All members compute the same bits, because they add the same numbers in the same
  // order.
  std::vector<ScaledNumber> weights_of(const TensorPart& part) const {
    const std::size_t n = inputs_.size();
    if (part.is_summed) return std::vector<ScaledNumber>(n, {1.0L, 0});
    std::vector<int> exponents(n, std::numeric_limits<int>::min());
    for (int member = part.first; member <= part.last; ++member) {
      const std::span<const double> its = part.of_member(member, n);
      for (std::size_t i = 0; i < n; ++i) {
        exponents[i] = std::max(exponents[i], static_cast<int>(its[i]));
      }
    }
    std::vector<double> products(pair_count(n), 0.0);
    for (int member = part.first; member <= part.last; ++member) {
      const std::span<const double> its = part.of_member(member, n);
      for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t j = 0; j <= i; ++j) {
          const int below = exponents[i] + exponents[j] - static_cast<int>(its[i]) -
                            static_cast<int>(its[j]);
          const std::size_t pair = pair_index(i, j);
          products[pair] += std::ldexp(its[n + pair], -below);
        }
      }
    }
    return adasum_weights({exponents, products});
  }

  const std::vector<const std::byte*> inputs_;  // each member's data of this slice
  const std::vector<TensorPart> parts_;
  const std::span<std::byte> output_;
  const DType dtype_;
  const double factor_;
  const int me_;
};

// Gives each part memory for its numbers, from the start of the plan's scratch memory.
void place_numbers(std::vector<TensorPart>& parts, const Plan& plan,
                   std::size_t inputs) {
  auto* next = reinterpret_cast<double*>(plan.scratch.get());
  for (TensorPart& part : parts) {
    if (part.is_summed) continue;
    const auto members = static_cast<std::size_t>(part.last - part.first + 1);
    part.numbers = {next, members * numbers_per_member(inputs)};
    next += part.numbers.size();
  }
}

std::size_t numbers_nbytes(const std::vector<TensorPart>& parts, std::size_t inputs) {
  std::size_t members = 0;
  for (const TensorPart& part : parts) {
    if (!part.is_summed)
      members += static_cast<std::size_t>(part.last - part.first + 1);
  }
  return members * numbers_per_member(inputs) * sizeof(double);
}

// Sends at most one message to each member, because two slices share at most one
// tensor.
void exchange_numbers(Phase& phase, const Team& team,
                      const std::vector<TensorPart>& parts) {
  for (const TensorPart& part : parts) {
    if (part.is_summed) continue;
    const auto of = [&](int member) {
      return std::as_writable_bytes(
          part.of_member(member, static_cast<std::size_t>(team.size())));
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
      reject(call, "expected nonnegative splits that add up to at most " +
                       std::to_string(call.input.size() / item_size(call.dtype)) +
                       " elements, got a split of " + std::to_string(count));
    }
    rest -= static_cast<std::size_t>(count);
  }
}

void add_adasum_allreduce(Plan& plan, const Team& team, const Call& call) {
  const std::vector<Range> slices = cut(call.input.size(), team.size());
  const Range mine = slices[team.me];
  const auto n = static_cast<std::size_t>(team.size());
  std::vector<TensorPart> parts = parts_of(tensors_of(call), slices, team.me);
  const std::size_t for_numbers = numbers_nbytes(parts, n);
  plan.scratch_nbytes =
      for_numbers + static_cast<std::size_t>(team.size() - 1) * mine.length;
  plan.scratch = std::make_shared_for_overwrite<std::byte[]>(plan.scratch_nbytes);
  place_numbers(parts, plan, n);

  plan.phases.resize(3);
  std::vector<const std::byte*> inputs;
  std::byte* next = plan.scratch.get() + for_numbers;
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
  exchange_numbers(plan.phases[1], team, parts);
  add_direct_allgather(plan, 2, team, call.output, slices);

  const auto slice = std::make_shared<const Slice>(std::move(inputs), std::move(parts),
                                                   mine.of(call.output), call, team.me);
  plan.phases[1].prepare = [slice] { slice->multiply(); };
  plan.phases[2].prepare = [slice] { slice->combine(); };
}

}  // namespace bluecomm
