#pragma once

#include <string>

#include "engine/membership/membership_message.h"

namespace bluecomm::test {

// Returns a message as a line of a schedule's story.
std::string text_of(const MembershipMessage& message);

}  // namespace bluecomm::test
