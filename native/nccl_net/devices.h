#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stream/address.h"

namespace bluecomm::nccl_net {

// A network interface ("device" in NCCL's terms) that NCCL may use.
struct Device {
  std::string name;
  std::string pci_path;  // empty if the interface is virtual
  int speed_mbps = 0;
  unsigned index = 0;  // the kernel's interface index
  stream::Address address;
};

// NCCL's own environment variables that select interfaces.
struct DeviceChoice {
  std::string interfaces;  // NCCL_SOCKET_IFNAME
  std::string family;      // NCCL_SOCKET_FAMILY; other than "AF_INET", "AF_INET6": both
  std::string comm_id;     // NCCL_COMM_ID: "address:port", or a host's name
};

// Returns the interfaces that NCCL's own socket transport would use, in its order, each
// with its first address. Throws std::runtime_error if there is none.
std::vector<Device> find_devices(const DeviceChoice& choice);

}  // namespace bluecomm::nccl_net
