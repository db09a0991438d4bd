#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/call.h"
#include "engine/envelope.h"

namespace bluecomm {

// What a rank tells about a call, besides its envelope, to a member that has joined:
// numbers of the shape and the splits, and the name, which an envelope may cut.
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
