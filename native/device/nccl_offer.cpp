#include "device/nccl_offer.h"

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "device/nccl_library.h"

namespace bluecomm::device {
namespace {

// The part that all offers have. The peers of an exchange follow: a bit for each member
// to which this one sends, and one for each from which it receives. If sizes are
// compared, a number of bytes takes the place of each bit, so the offer is longer.
struct Offer {
  std::int32_t rank = 0;
  std::int32_t version = 0;  // of NCCL
  std::array<char, 56> device{};
};

std::size_t peers_nbytes(std::size_t members) { return (members + 7) / 8; }
std::size_t sizes_nbytes(std::size_t members) {
  return members * sizeof(std::uint64_t);
}

void add_peers(std::vector<std::byte>& bytes, const std::vector<NcclMessage>& messages,
               std::size_t nbytes) {
  const std::size_t begin = bytes.size();
  bytes.resize(begin + nbytes);
  for (const NcclMessage& one : messages) {
    const auto peer = static_cast<std::size_t>(one.peer);
    bytes[begin + peer / 8] |= std::byte{1} << (peer % 8);
  }
}

void add_sizes(std::vector<std::byte>& bytes, const std::vector<NcclMessage>& messages,
               std::size_t members) {
  std::vector<std::uint64_t> sizes(members);
  for (const NcclMessage& one : messages) {
    sizes.at(static_cast<std::size_t>(one.peer)) += one.nbytes;
  }
  const auto* const begin = reinterpret_cast<const std::byte*>(sizes.data());
  bytes.insert(bytes.end(), begin, begin + sizes_nbytes(members));
}

bool has_peer(std::span<const std::byte> bits, std::size_t peer) {
  return (bits[peer / 8] & std::byte{1} << (peer % 8)) != std::byte{0};
}

Offer offer_of(std::span<const std::byte> offers, std::size_t nbytes,
               std::size_t member) {
  Offer offer;
  std::memcpy(&offer, offers.subspan(member * nbytes).data(), sizeof offer);
  offer.device.back() = '\0';
  return offer;
}

std::string describe_offer(const Offer& offer) {
  return "rank " + std::to_string(offer.rank) + " (" + offer.device.data() +
         ") has NCCL " + describe_nccl_version(offer.version);
}

void check_versions(std::span<const std::byte> offers, std::size_t nbytes) {
  const Offer first = offer_of(offers, nbytes, 0);
  for (std::size_t member = 1; member * nbytes < offers.size(); ++member) {
    const Offer other = offer_of(offers, nbytes, member);
    if (other.version == first.version) continue;
    throw std::invalid_argument(describe_offer(first) + ", but " +
                                describe_offer(other) +
                                "; install the same torch and NCCL on all machines, or "
                                "set BLUECOMM_DEVICE_TRANSPORT=staged");
  }
}

// Calls `body` with each peer that has a bit. Throws if a bit is that of no member, so
// that an offer which another program has written cannot lead beyond the offers.
template <typename Body>
void for_each_peer(std::span<const std::byte> bits, std::size_t members, Body body) {
  for (std::size_t i = 0; i < bits.size(); ++i) {
    for (auto left = std::to_integer<unsigned>(bits[i]); left != 0; left &= left - 1) {
      const std::size_t peer = 8 * i + static_cast<std::size_t>(std::countr_zero(left));
      if (peer >= members) {
        throw std::invalid_argument("an offer names member " + std::to_string(peer) +
                                    " of " + std::to_string(members) +
                                    "; run the same bluecomm on all machines");
      }
      body(peer);
    }
  }
}

// Throws unless the destinations of each member are the sources of the others, since a
// message without its counterpart hangs. Looks at the messages, not at all pairs of
// members.
void check_peers(std::span<const std::byte> offers, std::size_t nbytes) {
  const std::size_t members = offers.size() / nbytes;
  const std::size_t width = peers_nbytes(members);
  const auto sent_by = [&](std::size_t member) {
    return offers.subspan(member * nbytes + sizeof(Offer), width);
  };
  const auto received_by = [&](std::size_t member) {
    return offers.subspan(member * nbytes + sizeof(Offer) + width, width);
  };
  const auto rank_of = [&](std::size_t member) {
    return "rank " + std::to_string(offer_of(offers, nbytes, member).rank);
  };
  const auto reject = [](const std::string& what) {
    throw std::invalid_argument(
        what + "; the sources of each rank must match the destinations of the other");
  };
  for (std::size_t member = 0; member < members; ++member) {
    for_each_peer(sent_by(member), members, [&](std::size_t to) {
      if (has_peer(received_by(to), member)) return;
      reject(rank_of(member) + " sends to " + rank_of(to) +
             ", which does not receive from it");
    });
    for_each_peer(received_by(member), members, [&](std::size_t from) {
      if (has_peer(sent_by(from), member)) return;
      reject(rank_of(member) + " receives from " + rank_of(from) +
             ", which does not send to it");
    });
  }
}

// Throws unless each member receives as many bytes as the other one sends to it.
void check_sizes(std::span<const std::byte> offers, std::size_t nbytes) {
  const std::size_t members = offers.size() / nbytes;
  const std::size_t width = sizes_nbytes(members);
  const auto size_of = [&](std::size_t member, std::size_t table, std::size_t peer) {
    std::uint64_t size = 0;
    const std::size_t begin = member * nbytes + sizeof(Offer) + table * width;
    std::memcpy(&size, offers.subspan(begin + peer * sizeof size).data(), sizeof size);
    return size;
  };
  const auto rank_of = [&](std::size_t member) {
    return "rank " + std::to_string(offer_of(offers, nbytes, member).rank);
  };
  for (std::size_t from = 0; from < members; ++from) {
    for (std::size_t to = 0; to < members; ++to) {
      const std::uint64_t sent = size_of(from, 0, to);
      const std::uint64_t received = size_of(to, 1, from);
      if (sent == received) continue;
      throw std::invalid_argument(
          rank_of(from) + " sends " + std::to_string(sent) + " bytes to " +
          rank_of(to) + ", which expects " + std::to_string(received) +
          " bytes from it; pass tensors of the same type and size on both");
    }
  }
}

}  // namespace

std::vector<std::byte> make_nccl_offer(int rank, int version, const std::string& device,
                                       int members, const NcclWork& work) {
  Offer offer;
  offer.rank = rank;
  offer.version = version;
  device.copy(offer.device.data(), offer.device.size() - 1);
  std::vector<std::byte> bytes(sizeof offer);
  std::memcpy(bytes.data(), &offer, sizeof offer);
  if (work.function == NcclWork::Function::kExchange) {
    const auto count = static_cast<std::size_t>(members);
    const auto add = work.compares_sizes ? add_sizes : add_peers;
    const std::size_t width = work.compares_sizes ? count : peers_nbytes(count);
    add(bytes, work.sends, width);
    add(bytes, work.receives, width);
  }
  return bytes;
}

void check_nccl_offers(std::span<const std::byte> offers, std::size_t nbytes) {
  check_versions(offers, nbytes);
  if (nbytes == sizeof(Offer)) return;
  const bool has_sizes =
      nbytes == sizeof(Offer) + 2 * sizes_nbytes(offers.size() / nbytes);
  (has_sizes ? check_sizes : check_peers)(offers, nbytes);
}

}  // namespace bluecomm::device
