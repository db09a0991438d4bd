#pragma once

#include <map>
#include <string>

namespace bluecomm {

// A rank as the rendezvous describes it.
struct Peer {
  int rank = 0;
  std::string host;
  std::string machine;  // ranks with equal strings share one machine
  int pid = 0;
  std::map<std::string, std::string> offers;  // transport name to offer
};

}  // namespace bluecomm
