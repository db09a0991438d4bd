#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stream/address.h"

namespace bluecomm::nccl_net {

// A network card that NCCL may use.
struct Device {
  std::string name;
  std::string pci_path;  // empty: a virtual one
  int speed_mbps = 0;
  unsigned index = 0;  // the kernel's number of the interface
  stream::Address address;
};

// What NCCL's own variables say about the choice.
struct DeviceChoice {
  std::string interfaces;  // NCCL_SOCKET_IFNAME
  std::string family;      // NCCL_SOCKET_FAMILY: "AF_INET", "AF_INET6" or anything
  std::string comm_id;     // NCCL_COMM_ID: "address:port", or a host's name
};

// The cards that NCCL's own socket transport would take, in its order: one address of
// each, the first. Throws std::runtime_error if there is none.
std::vector<Device> find_devices(const DeviceChoice& choice);

}  // namespace bluecomm::nccl_net
