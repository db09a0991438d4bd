#pragma once

#include "stream/options.h"

namespace bluecomm {

// The tcp transport is the stream library with a transport's interface: it has the same
// options.
using TcpOptions = stream::Options;

}  // namespace bluecomm
