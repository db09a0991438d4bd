// Offers of a call through NCCL, as members make them and as garbage.
#include "device/nccl_offer.h"

#include <random>
#include <stdexcept>
#include <vector>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

using device::check_nccl_offers;
using device::make_nccl_offer;
using device::NcclWork;

// Returns an offer of a member that sends to the next one, and receives from the one
// before.
std::vector<std::byte> ring_offer(int rank, int members, bool compares_sizes) {
  NcclWork work;
  work.function = NcclWork::Function::kExchange;
  work.compares_sizes = compares_sizes;
  work.sends.push_back({.peer = (rank + 1) % members, .nbytes = 8});
  work.receives.push_back({.peer = (rank + members - 1) % members, .nbytes = 8});
  return make_nccl_offer(rank, 22907, "a device", members, work);
}

std::vector<std::byte> ring_offers(int members, bool compares_sizes) {
  std::vector<std::byte> all;
  for (int rank = 0; rank < members; ++rank) {
    const std::vector<std::byte> one = ring_offer(rank, members, compares_sizes);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

TEST(nccl_offer, offers_of_a_ring_suit_one_another) {
  for (const int members : {2, 3, 8, 9, 20}) {
    for (const bool compares_sizes : {false, true}) {
      const std::vector<std::byte> all = ring_offers(members, compares_sizes);
      check_nccl_offers(all, all.size() / static_cast<std::size_t>(members));
    }
  }
}

// The sanitizers watch the bytes that are read.
TEST(nccl_offer, garbage_in_offers_is_refused) {
  std::mt19937_64 random(1);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    const int members = 2 + static_cast<int>(random() % 9);
    std::vector<std::byte> all = ring_offers(members, random() % 2 == 0);
    const std::size_t nbytes = all.size() / static_cast<std::size_t>(members);
    for (int changed = 0; changed < 3; ++changed) {
      all[random() % all.size()] = static_cast<std::byte>(random());
    }
    try {
      check_nccl_offers(all, nbytes);
    } catch (const std::invalid_argument&) {
      ++refused;
    }
  }
  CHECK(refused > 0);
}

TEST(nccl_offer, an_offer_with_a_bit_of_no_member_is_refused) {
  std::vector<std::byte> all = ring_offers(3, false);
  const std::size_t nbytes = all.size() / 3;
  all[nbytes - 2] |= std::byte{0x80};  // the byte of destinations
  CHECK_THROWS(check_nccl_offers(all, nbytes), std::invalid_argument,
               "an offer names member 7 of 3");
}

}  // namespace
}  // namespace bluecomm::test
