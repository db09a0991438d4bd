#pragma once

#include <string>

namespace bluecomm {

// Processors that this process can keep busy at once: those that its affinity allows,
// and no more than the CPU quota of its control group (version 1 or 2) or of any group
// around it pays for, rounded down. At least 1.
int usable_cores();

// What the control groups alone allow: the files are looked up below `root`, which is
// empty except in tests. A large number where nothing limits.
int cores_by_quota(const std::string& root);

}  // namespace bluecomm
