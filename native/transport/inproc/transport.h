#pragma once

#include <memory>

#include "transport/channel.h"
#include "transport/inproc/options.h"

namespace bluecomm {
namespace inproc {
class Hub;
}

// Connects ranks that live in one process: tests of the engine and of the conformance
// suite use it. It copies every payload, and a link breaks only when a test cuts it.
// Thread-safe; the transports keep the shared state alive.
class InprocHub {
 public:
  explicit InprocHub(int size, const InprocOptions& options = {});
  ~InprocHub();

  // Makes the transport of `rank`, once. All transports must be made before the first
  // one is polled.
  std::unique_ptr<Transport> make_transport(int rank);

  // Breaks all links of a rank at once, as the end of its process does. Messages
  // already sent still arrive, then both ranks of each link are told of the loss.
  void cut_off(int rank);

 private:
  const std::shared_ptr<inproc::Hub> hub_;
};

}  // namespace bluecomm
