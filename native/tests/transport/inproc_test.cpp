#include "tests/check.h"
#include "tests/transport/conformance.h"
#include "tests/transport/ranks.h"
#include "transport/inproc/transport.h"

namespace bluecomm::test {
namespace {

World make_world(int size, const InprocOptions& options) {
  World world;
  InprocHub hub(size, options);
  for (int rank = 0; rank < size; ++rank) {
    world.transports.push_back(hub.make_transport(rank));
  }
  connect(world);
  return world;
}

Scheme inproc() {
  return {[](int size) { return make_world(size, {}); }, InprocOptions{}.eager_bytes};
}

Scheme inproc_delayed() {
  const InprocOptions options{.eager_bytes = 200,
                              .chunk_bytes = 64 * 77,
                              .max_delay = std::chrono::microseconds(500),
                              .seed = 5};
  return {[options](int size) { return make_world(size, options); },
          options.eager_bytes};
}

const bool inproc_registered = register_conformance<&inproc>("inproc");
const bool registered_delayed = register_conformance<&inproc_delayed>("inproc_delayed");

}  // namespace

TEST(inproc, cut_tells_both_sides_after_what_was_sent) {
  auto hub = std::make_shared<InprocHub>(2);
  const Scheme scheme{[hub](int size) {
                        World world;
                        for (int rank = 0; rank < size; ++rank) {
                          world.transports.push_back(hub->make_transport(rank));
                        }
                        connect(world);
                        return world;
                      },
                      4096};
  Findings findings;
  Ranks ranks(scheme, 2, findings);
  const Sending eager = ranks[0].send(1, 1, 100);
  hub->cut_off(0);
  ranks.drive("loss on both sides",
              [&] { return ranks[0].lost.contains(1) && ranks[1].lost.contains(0); });
  if (Reader* reader = ranks.await(1, 1)) ranks.read_all(*reader);
  CHECK_EQ(findings.size(), 0u);
}

}  // namespace bluecomm::test
