#pragma once

#include <memory>

#include "transport/channel.h"

namespace bluecomm::test {

enum class Fault {
  kNone,
  kLostChunk,      // 64 bytes in the middle of a payload never arrive
  kSwappedChunks,  // two neighboring chunks of 64 bytes arrive in the wrong order
  kEarlyRelease,   // released() covers the payload as soon as it is sent
};

// Returns a transport that works like `transport`, except that it commits `fault` in
// each payload of more than 128 bytes.
std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> transport,
                                       Fault fault);

}  // namespace bluecomm::test
