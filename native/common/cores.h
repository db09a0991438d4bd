#pragma once

#include <string>

namespace bluecomm {

// Returns the number of processors that this process can keep busy at once: those that
// its affinity mask allows, limited by the CPU quotas of its control group (version 1
// or 2) and of the groups above it, rounded down. The result is at least 1.
int usable_cores();

// Returns the limit set by the control groups alone, or the largest int if there is
// none. The files are looked up below `root`, which is empty except in tests.
int cores_by_quota(const std::string& root);

}  // namespace bluecomm
