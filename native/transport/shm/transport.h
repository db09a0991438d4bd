#pragma once

#include <memory>

#include "transport/channel.h"
#include "transport/shm/options.h"

// The transport between processes of one machine, over shared memory.
//
// Small messages go through a ring that two ranks share. A peer reads a large payload
// in SharedMemory where it lies; the sender copies any other large payload into shared
// memory, chunk by chunk, when the peer wants it. A Unix socket connects two ranks,
// passes file descriptors of shared memory, and shows by its closing that a peer's
// process has ended. While both ranks are awake, no message needs a system call.

namespace bluecomm {

// Throws std::system_error if the system refuses a resource, and std::invalid_argument
// for invalid options.
std::unique_ptr<Transport> make_shm_transport(const ShmOptions& options);

}  // namespace bluecomm
