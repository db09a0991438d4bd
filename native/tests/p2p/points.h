#pragma once

#include <cstdint>
#include <span>

#include "tests/engine/engine_world.h"

// Sends and receives for tests.

namespace bluecomm::test {

// Return calls whose memory is `values`. `peer` is a global rank; a receive may name
// kAnySource.
PointCall send_call(Engine& engine, std::span<float> values, int peer,
                    std::int64_t tag = 0, std::uint64_t group = kWorld);
PointCall recv_call(Engine& engine, std::span<float> values, int peer,
                    std::int64_t tag = 0, std::uint64_t group = kWorld);

// Waits for a request and releases it.
Status finish(Engine& engine, RequestId id);

// Starts a call, waits for it and releases it.
Status run_point(Engine& engine, PointCall call);

}  // namespace bluecomm::test
