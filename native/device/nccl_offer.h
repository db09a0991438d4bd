#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "device/nccl_comm.h"

namespace bluecomm::device {

// Returns a member's facts about a call of a group of `members`: its rank in the world,
// its version of NCCL and its device; for an exchange also its peers and, if the
// members compare sizes, the bytes of its messages. All members' offers of a call have
// the same length.
std::vector<std::byte> make_nccl_offer(int rank, int version, const std::string& device,
                                       int members, const NcclWork& work);

// Compares the offers of all members, of `nbytes` each. Throws std::invalid_argument if
// their versions differ, if a member sends to another one that does not receive from
// it, or the reverse, or if the two do not agree on the bytes of the message.
void check_nccl_offers(std::span<const std::byte> offers, std::size_t nbytes);

}  // namespace bluecomm::device
