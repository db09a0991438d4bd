// The checks that the planners make before they plan, on the thread that submits the
// operation. Their texts reach the user as ValueError.
#include "engine/collectives/validate.h"

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
std::size_t nbytes_from(const Request& request, std::size_t first) {
  std::size_t nbytes = item_size(request.dtype);
  for (std::size_t i = first; i < request.shape.size(); ++i) {
    if (request.shape[i] < 0) {
      refuse(request,
             "dimensions must be at least 0, got shape " + text_of(request.shape));
    }
    if (__builtin_mul_overflow(nbytes, static_cast<std::size_t>(request.shape[i]),
                               &nbytes)) {
      refuse(request, "shape " + text_of(request.shape) + " exceeds the address space");
    }
  }
  return nbytes;
}

bool overlap(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return !a.empty() && !b.empty() && before(a.data(), b.data() + b.size()) &&
         before(b.data(), a.data() + a.size());
}

void check_length(const Request& request, const char* what, std::size_t got,
                  std::size_t expected) {
  if (got == expected) return;
  refuse(request, std::string(what) + " must have " + std::to_string(expected) +
                      " bytes (" + std::string(dtype_name(request.dtype)) + " " +
                      text_of(request.shape) + "), got " + std::to_string(got));
}

}  // namespace

void refuse(const Request& request, const std::string& why) {
  std::string text(kind_name(request.kind));
  if (!request.name.empty()) text += " '" + request.name + "'";
  const Group* group = request.group.get();
  if (group != nullptr && group->me >= 0 && group->me < group->size()) {
    text += " on rank " + std::to_string(group->ranks[group->me]);
  }
  throw std::invalid_argument(text + ": " + why);
}

void check_group(const Request& request) {
  const Group* group = request.group.get();
  if (group == nullptr) refuse(request, "expected a group of ranks, got none");
  if (group->me < 0 || group->me >= group->size()) {
    refuse(request, "expected this rank to be one of the group's " +
                        std::to_string(group->size()) + " members, got index " +
                        std::to_string(group->me));
  }
  if (group->machine_of.size() != group->ranks.size()) {
    refuse(request, "expected the machine of each of " + std::to_string(group->size()) +
                        " members, got " + std::to_string(group->machine_of.size()));
  }
}

void check_input(const Request& request) {
  check_length(request, "the input", request.input.size(), nbytes_from(request, 0));
}

void check_output(const Request& request, std::span<const std::byte> own) {
  if (request.output.size() != own.size()) {
    refuse(request, "the output must have " + std::to_string(own.size()) +
                        " bytes, got " + std::to_string(request.output.size()));
  }
  if (request.output.data() != own.data() && overlap(request.input, request.output)) {
    refuse(request,
           "the output must be the input itself or must not overlap it, got memory "
           "that overlaps it in part");
  }
}

void check_stackable(const Request& request) {
  if (request.shape.empty()) {
    refuse(request,
           "expected a tensor with at least one dimension, got one with none; "
           "reshape it to [1]");
  }
  if (!request.allocate)
    refuse(request, "expected a function that allocates the result, got none");
  if (!request.output.empty()) {
    refuse(request,
           "expected no output, because its length is not known in advance, got " +
               std::to_string(request.output.size()) + " bytes");
  }
}

void check_reduction(const Request& request) {
  if (request.op == ReduceOp::kAdasum && request.kind != Kind::kAllreduce) {
    refuse(request, "only allreduce supports op adasum; use op average or sum");
  }
  if (is_floating(request.dtype)) return;
  const std::string dtype(dtype_name(request.dtype));
  if (request.op == ReduceOp::kAdasum) {
    refuse(request, "expected a floating dtype for op adasum, got " + dtype +
                        "; use op sum, or convert the tensor first");
  }
  if (request.op == ReduceOp::kAverage) {
    refuse(request, "expected a floating dtype for an average, got " + dtype +
                        "; use op sum, or convert the tensor first");
  }
  if (request.prescale != 1.0 || request.postscale != 1.0) {
    refuse(request, "expected scales of 1 for " + dtype + ", got prescale " +
                        std::to_string(request.prescale) + " and postscale " +
                        std::to_string(request.postscale) +
                        "; convert the tensor to a floating dtype first");
  }
}

void check_neighbors(const Request& request, const std::vector<Weight>& neighbors,
                     const std::string& role, const std::string& unit, int count,
                     int self) {
  std::vector<bool> seen(static_cast<std::size_t>(count), false);
  for (const auto& [neighbor, weight] : neighbors) {
    if (neighbor < 0 || neighbor >= count) {
      refuse(request, "expected each " + role + " to be a " + unit + " from 0 to " +
                          std::to_string(count - 1) + ", got " +
                          std::to_string(neighbor));
    }
    if (neighbor == self) {
      refuse(request, "expected each " + role + " to be another " + unit +
                          " than this one, got " + std::to_string(neighbor) +
                          "; pass its own weight as self_weight");
    }
    if (seen[neighbor]) {
      refuse(request, "expected each " + role + " once, got " + unit + " " +
                          std::to_string(neighbor) + " twice");
    }
    seen[neighbor] = true;
  }
}

void check_weights(const Request& request) {
  if (is_floating(request.dtype)) return;
  const auto check = [&](double weight) {
    if (weight == 1.0) return;
    refuse(request, "expected weights of 1 for " +
                        std::string(dtype_name(request.dtype)) + ", got " +
                        std::to_string(weight) +
                        "; convert the tensor to a floating dtype first");
  };
  check(request.self_weight);
  for (const auto& [source, weight] : request.sources) check(weight);
  for (const auto& [destination, weight] : request.destinations) check(weight);
}

std::size_t row_nbytes(const Request& request) { return nbytes_from(request, 1); }

}  // namespace bluecomm
