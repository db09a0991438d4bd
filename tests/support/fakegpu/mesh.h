// Connects the ranks of a new communicator with each other.
#pragma once

#include <string>
#include <vector>

#include "comm.h"
#include "common/fd.h"

namespace fakegpu {

// The facts about itself that a rank sends to the others.
struct Introduction {
  int rank;
  int size;
  int device;
  int version;
  int color;
  int key;
  char host[64];
  char address[64];  // name of an abstract socket
};

// A socket on which a rank waits for higher ranks.
struct MeshListener {
  bluecomm::UniqueFd fd;
  std::string address;
};

MeshListener listen_for_ranks();
Introduction introduce(int rank, int size, int device, const MeshListener& listener);

// Makes an id and starts the thread that brings together the ranks which use it.
ncclUniqueId make_unique_id();
// Tells the ranks of an id of each other. Returns the introductions in the order of the
// ranks, or nothing if the communicator was aborted or the ranks do not fit.
std::vector<Introduction> meet(FakeComm& comm, const ncclUniqueId& id,
                               const Introduction& own);
// Connects `comm` to the ranks of these introductions; the communicator's rank is the
// position in them. Returns false if it was aborted or failed.
bool connect_mesh(FakeComm& comm, const MeshListener& listener,
                  const std::vector<Introduction>& ranks);

}  // namespace fakegpu
