#include "transport/shm/doorbell.h"

#include <cerrno>
#include <system_error>

namespace bluecomm::shm {

Doorbell::Doorbell()
    : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      state_file_(make_memfd("bluecomm-doorbell", sizeof(DoorbellState))),
      state_(state_file_.get(), sizeof(DoorbellState), Access::kReadWrite) {
  if (!event_) throw std::system_error(errno, std::generic_category(), "eventfd");
}

}  // namespace bluecomm::shm
