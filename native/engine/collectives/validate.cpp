// The checks that the planners make before they plan, on the thread that submits the
// operation. Their texts reach the user as ValueError.
#include "engine/collectives/validate.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string_view>

namespace bluecomm {
namespace {

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + "]";
}

// Returns the bytes of a tensor with the dimensions from shape[first] on.
std::size_t nbytes_from(const Call& call, std::size_t first) {
  std::size_t nbytes = item_size(call.dtype);
  for (std::size_t i = first; i < call.shape.size(); ++i) {
    if (call.shape[i] < 0) {
      reject(call, "dimensions must be at least 0, got shape " + text_of(call.shape));
    }
    if (__builtin_mul_overflow(nbytes, static_cast<std::size_t>(call.shape[i]),
                               &nbytes)) {
      reject(call, "shape " + text_of(call.shape) + " exceeds the address space");
    }
  }
  return nbytes;
}

bool is_bitwise(ReduceOp op) {
  return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
}

// Tensors of the dtype can be combined, not only moved.
void check_arithmetic(const Call& call) {
  if (!is_only_moved(call.dtype)) return;
  reject(call, "tensors of type " + std::string(dtype_name(call.dtype)) +
                   " can be moved, but not combined; convert them first");
}

void check_length(const Call& call, const char* what, std::size_t got,
                  std::size_t expected) {
  if (got == expected) return;
  reject(call, std::string(what) + " must have " + std::to_string(expected) +
                   " bytes (" + std::string(dtype_name(call.dtype)) + " " +
                   text_of(call.shape) + "), got " + std::to_string(got));
}

}  // namespace

void reject(const Call& call, const std::string& why) {
  std::string text(kind_name(call.kind));
  if (!call.name.empty()) text += " '" + call.name + "'";
  const Group* group = call.group.get();
  if (group != nullptr && group->me >= 0 && group->me < group->size()) {
    text += " on rank " + std::to_string(group->ranks[group->me]);
  }
  throw std::invalid_argument(text + ": " + why);
}

void check_group(const Call& call) {
  const Group* group = call.group.get();
  if (group == nullptr) reject(call, "expected a group of ranks, got none");
  if (group->me < 0 || group->me >= group->size()) {
    reject(call, "expected this rank to be one of the group's " +
                     std::to_string(group->size()) + " members, got index " +
                     std::to_string(group->me));
  }
  if (group->machine_of.size() != group->ranks.size()) {
    reject(call, "expected the machine of each of " + std::to_string(group->size()) +
                     " members, got " + std::to_string(group->machine_of.size()));
  }
}

void check_input(const Call& call) {
  check_length(call, "the input", call.input.size(), nbytes_from(call, 0));
}

void check_output(const Call& call, std::span<const std::byte> own) {
  if (call.output.size() != own.size()) {
    reject(call, "the output must have " + std::to_string(own.size()) + " bytes, got " +
                     std::to_string(call.output.size()));
  }
  if (call.output.data() != own.data() && shares_memory(call.input, call.output)) {
    reject(call,
           "the output must be the input itself or must not overlap it, got memory "
           "that overlaps it in part");
  }
}

bool shares_memory(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

void check_stackable(const Call& call, std::size_t sources) {
  if (call.shape.empty()) {
    reject(call,
           "expected a tensor with at least one dimension, got one with none; "
           "reshape it to [1]");
  }
  if (!call.allocate)
    reject(call, "expected a function that allocates the result, got none");
  if (!call.output.empty()) {
    reject(call,
           "expected no output, because its length is not known in advance, got " +
               std::to_string(call.output.size()) + " bytes");
  }
  if (call.outputs.size() > 1 && call.outputs.size() != sources) {
    reject(call, "expected memory for all rows, or for the rows of each of " +
                     std::to_string(sources) + " ranks, got " +
                     std::to_string(call.outputs.size()) + " outputs");
  }
  std::vector<std::span<std::byte>> outputs = call.outputs;
  std::sort(outputs.begin(), outputs.end(), [](const auto& a, const auto& b) {
    return std::less<const std::byte*>()(a.data(), b.data());
  });
  std::span<std::byte> before;
  for (const std::span<std::byte> output : outputs) {
    if (output.empty()) continue;
    if (shares_memory(before, output)) {
      reject(call, "expected outputs that do not overlap, got two that share memory");
    }
    before = output;
  }
}

void check_reduction(const Call& call) {
  const std::string dtype(dtype_name(call.dtype));
  check_arithmetic(call);
  if (call.op == ReduceOp::kAdasum && call.kind != Kind::kAllreduce) {
    reject(call, "only allreduce supports op adasum; use op average or sum");
  }
  if (is_complex(call.dtype) && call.op != ReduceOp::kSum &&
      call.op != ReduceOp::kAverage) {
    reject(call,
           "expected op sum or average for " + dtype + "; use torch.view_as_real");
  }
  if (is_bitwise(call.op) && is_floating(call.dtype)) {
    reject(call, "expected an integer dtype or bool for a bitwise op, got " + dtype);
  }
  if (is_floating(call.dtype)) return;
  if (call.op == ReduceOp::kAdasum) {
    reject(call, "expected a floating dtype for op adasum, got " + dtype +
                     "; use op sum, or convert the tensor first");
  }
  if (call.op == ReduceOp::kAverage) {
    reject(call, "expected a floating dtype for an average, got " + dtype +
                     "; use op sum, or convert the tensor first");
  }
  if (call.prescale != 1.0 || call.postscale != 1.0) {
    reject(call, "expected scales of 1 for " + dtype + ", got prescale " +
                     std::to_string(call.prescale) + " and postscale " +
                     std::to_string(call.postscale) +
                     "; convert the tensor to a floating dtype first");
  }
}

void check_root(const Call& call) {
  const int n = call.group->size();
  if (call.root >= 0 && call.root < n) return;
  reject(call, "expected a root from 0 to " + std::to_string(n - 1) + ", got " +
                   std::to_string(call.root));
}

void check_splits(const Call& call) {
  const std::int64_t rows = call.shape.front();
  const int members = call.group->size();
  if (call.splits.size() != static_cast<std::size_t>(members)) {
    reject(call, "expected one split for each of " + std::to_string(members) +
                     " members, got " + std::to_string(call.splits.size()));
  }
  std::int64_t left = rows;
  for (std::int64_t split : call.splits) {
    if (split < 0 || split > left) {
      reject(call, "expected nonnegative splits that add up to the " +
                       std::to_string(rows) + " rows, got a split of " +
                       std::to_string(split) + " when only " + std::to_string(left) +
                       " rows are left");
    }
    left -= split;
  }
  if (left != 0) {
    reject(call, "expected splits that add up to the " + std::to_string(rows) +
                     " rows, got " + std::to_string(rows - left));
  }
}

void check_neighbors(const Call& call, const std::vector<Weight>& neighbors,
                     const std::string& role, const std::string& unit, int count,
                     int self) {
  std::vector<bool> seen(static_cast<std::size_t>(count), false);
  for (const auto& [neighbor, weight] : neighbors) {
    if (neighbor < 0 || neighbor >= count) {
      reject(call, "expected each " + role + " to be a " + unit + " from 0 to " +
                       std::to_string(count - 1) + ", got " + std::to_string(neighbor));
    }
    if (neighbor == self) {
      reject(call, "expected each " + role + " to be another " + unit +
                       " than this one, got " + std::to_string(neighbor) +
                       "; pass its own weight as self_weight");
    }
    if (seen[neighbor]) {
      reject(call, "expected each " + role + " once, got " + unit + " " +
                       std::to_string(neighbor) + " twice");
    }
    seen[neighbor] = true;
  }
}

void check_weights(const Call& call) {
  check_arithmetic(call);
  if (is_floating(call.dtype)) return;
  const auto check = [&](double weight) {
    if (weight == 1.0) return;
    reject(call, "expected weights of 1 for " + std::string(dtype_name(call.dtype)) +
                     ", got " + std::to_string(weight) +
                     "; convert the tensor to a floating dtype first");
  };
  check(call.self_weight);
  for (const auto& [source, weight] : call.sources) check(weight);
  for (const auto& [destination, weight] : call.destinations) check(weight);
}

std::size_t row_nbytes(const Call& call) { return nbytes_from(call, 1); }

}  // namespace bluecomm
