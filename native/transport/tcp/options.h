#pragma once

#include "stream/options.h"

namespace bluecomm {

// The options of the tcp transport are those of native/stream, which implements its
// protocol.
using TcpOptions = stream::Options;

}  // namespace bluecomm
