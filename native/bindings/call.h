#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <variant>

#include "engine/call.h"
#include "p2p/point_request.h"

namespace bluecomm::bindings {

// A call of an operation, parsed from a Python Call (bluecomm/runtime/call.py).
struct ParsedCall {
  // Without its group. The peer of a PointCall is a member of the group.
  std::variant<Call, PointCall> call;
  std::uint64_t group_id = 0;  // group that takes part
  bool blocking = false;       // the caller waits for the operation immediately
};

// Reads the attributes of a Python Call. Needs the GIL. Throws std::invalid_argument
// for an unknown word or a deadline that is NaN, and pybind11's exceptions for an
// attribute that is missing or has another type.
ParsedCall parse_call(pybind11::handle call);

// Enters the group of a parsed call.
void set_group(Call& call, std::shared_ptr<const Group> group);
void set_group(PointCall& call, const std::shared_ptr<const Group>& group);

// Returns a call of other ranks in which this one is to take part, as a tuple of the
// group's id, kind, name, element type, shape and Parameters. Needs the GIL.
pybind11::tuple describe_announced(const Call& call);

}  // namespace bluecomm::bindings
