#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/call.h"
#include "engine/envelope.h"

namespace bluecomm {

// The part of a message about a call, to a member that has joined, that the envelope
// lacks: the whole shape, the splits, and the whole name.
struct Announcement {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> splits;
  std::string name;
};

// Returns the payload of an announcement.
std::vector<std::byte> to_payload(const Call& call);

// Returns the announcement of a call. Throws std::invalid_argument if the payload is
// not that of a call with this envelope.
Announcement read_announcement(const Envelope& envelope, std::string_view payload);

}  // namespace bluecomm
