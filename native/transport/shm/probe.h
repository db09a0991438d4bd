#pragma once

#include <string>

namespace bluecomm {

// Whether ranks that share `socket_dir` can hand each other shared memory: a memfd goes
// through a Unix socket made there and is mapped at the other end, where a nonce
// written before is read back. Returns what did not work, or nothing.
std::string probe_shm(const std::string& socket_dir, int rank);

}  // namespace bluecomm
