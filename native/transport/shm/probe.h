#pragma once

#include <string>

namespace bluecomm {

// Tests whether ranks that share `socket_dir` can pass each other shared memory. Sends
// a memfd through a Unix socket in that directory, maps it at the other end, and reads
// back a nonce. Returns what did not work, or an empty string.
std::string probe_shm(const std::string& socket_dir, int rank);

}  // namespace bluecomm
