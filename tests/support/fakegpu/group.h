// Groups of NCCL calls, one per thread, and the launch at their end.
#pragma once

#include "operation.h"

namespace fakegpu {

ncclResult_t begin_group();
// Launches what the group holds, if it is the outermost one. A non-blocking
// communicator may launch later, on another thread: kNcclInProgress.
ncclResult_t end_group();
// Adds to this thread's group; without one, launches at once.
ncclResult_t add_operation(Operation operation);

// Passes an error of a call on to this thread's ncclGroupEnd, and returns it.
ncclResult_t fail_group(ncclResult_t error);

// Draws from the seed of this process.
std::uint64_t draw();

}  // namespace fakegpu
