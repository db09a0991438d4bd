#pragma once

namespace bluecomm::nccl_net {

// From now on no other thread is in the midst of anything of the plugin while the
// process forks, so that the child finds it whole: without connections and threads, and
// with locks that are free. Throws std::system_error.
void prepare_for_forks();

}  // namespace bluecomm::nccl_net
