#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/transport/conformance.h"
#include "tests/transport/ranks.h"
#include "tests/transport/shm_support.h"
#include "transport/shm/transport.h"

namespace bluecomm::test {
namespace {

World make_world(int size, bool in_shared_memory) {
  struct Keep {
    TemporaryDirectory directory;
    std::vector<std::shared_ptr<SharedMemory>> memories;
    std::vector<SharedBlock> blocks;
  };
  auto keep = std::make_shared<Keep>();
  World world;
  for (int rank = 0; rank < size; ++rank) {
    keep->memories.push_back(std::make_shared<SharedMemory>());
    ShmOptions options = shm_options(rank, keep->directory.path());
    options.memory = keep->memories.back();
    world.transports.push_back(make_shm_transport(options));
  }
  if (in_shared_memory) {
    // Payloads do not begin at the start of a block.
    world.allocate = [keep = keep.get()](int rank, std::size_t nbytes) {
      SharedMemory& memory = *keep->memories[static_cast<std::size_t>(rank)];
      return keep->blocks.emplace_back(memory.allocate(nbytes + 8)).bytes().subspan(8);
    };
  }
  world.keep = std::move(keep);
  connect(world);
  return world;
}

Scheme shm_staged() {
  return {[](int size) { return make_world(size, false); }, ShmOptions{}.eager_bytes};
}

Scheme shm_in_place() {
  return {[](int size) { return make_world(size, true); }, ShmOptions{}.eager_bytes};
}

const bool registered_staged = register_conformance<&shm_staged>("shm_staged");
const bool registered_in_place = register_conformance<&shm_in_place>("shm_in_place");

}  // namespace
}  // namespace bluecomm::test
