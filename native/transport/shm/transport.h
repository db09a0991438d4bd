#pragma once

#include <memory>

#include "transport/channel.h"
#include "transport/shm/options.h"

// Transport between processes of one machine, over shared memory.
//
// Small messages go through a ring that two ranks share. A large payload in
// SharedMemory is read by the peer where it lies; any other is copied by the sender
// into shared memory, chunk by chunk, when the peer wants it. A Unix socket brings two
// ranks together, passes the files of memory, and tells by its end that a peer has
// gone. While both ranks are awake nothing makes a system call.

namespace bluecomm {

// Throws std::system_error when the system refuses a resource, and
// std::invalid_argument for options that cannot be.
std::unique_ptr<Transport> make_shm_transport(const ShmOptions& options);

}  // namespace bluecomm
