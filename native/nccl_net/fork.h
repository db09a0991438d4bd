#pragma once

namespace bluecomm::nccl_net {

// Installs fork handlers that lock the whole plugin while the process forks. The child
// then has a consistent plugin without connections and threads, and with all locks
// free. Throws std::system_error.
void prepare_for_forks();

}  // namespace bluecomm::nccl_net
