// The allocator behind SharedMemory. The engine allocates results in it through the
// Python binding, and transports look up memory in it, both on any thread. One mutex
// guards all free ranges. Segments are sealed memfds, so a peer that maps one cannot be
// killed by SIGBUS when this process frees memory.
#include "common/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "common/mutex.h"

namespace bluecomm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kSmallBlock = std::size_t{1} << 20;
constexpr std::size_t kSmallSegment = std::size_t{16} << 20;

std::size_t round_up(std::size_t nbytes, std::size_t multiple) {
  return (nbytes + multiple - 1) / multiple * multiple;
}

[[noreturn]] void fail(const char* call, std::size_t nbytes) {
  throw std::system_error(errno, std::generic_category(),
                          "cannot make a shared memory segment of " +
                              std::to_string(nbytes) + " bytes: " + call);
}

}  // namespace

Segment::Segment(std::uint64_t id, std::size_t nbytes) : id_(id) {
  fd_.reset(memfd_create("bluecomm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd_) fail("memfd_create", nbytes);
  if (ftruncate(fd_.get(), static_cast<off_t>(nbytes)) != 0) fail("ftruncate", nbytes);
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (fcntl(fd_.get(), F_ADD_SEALS, seals) != 0) fail("F_ADD_SEALS", nbytes);
  void* address =
      mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (address == MAP_FAILED) fail("mmap", nbytes);
  bytes_ = {static_cast<std::byte*>(address), nbytes};
  // A hint only; most systems use small pages anyway.
  madvise(address, nbytes, MADV_HUGEPAGE);
}

Segment::~Segment() { munmap(bytes_.data(), bytes_.size()); }

// The state of the allocator. Blocks share it, so it outlives the allocator while any
// block exists.
struct SharedBlock::Owner {
  struct Used {
    std::shared_ptr<Segment> segment;
    bool small = false;
    std::size_t nbytes_used = 0;
  };
  using Address = std::byte*;

  explicit Owner(const SharedMemory::Sizes& sizes) : sizes(sizes) {}

  std::span<std::byte> allocate(std::size_t nbytes) {
    const bool small = nbytes <= kSmallBlock;
    const LockGuard lock(mutex);
    auto fit = by_size[small].lower_bound({nbytes, nullptr});
    if (fit == by_size[small].end()) fit = add_segment(nbytes, small);
    const auto [length, address] = *fit;
    take(address);
    Used& used = segment_of(address);
    if (used.nbytes_used == 0) nbytes_idle -= used.segment->bytes().size();
    used.nbytes_used += nbytes;
    if (length > nbytes) give(address + nbytes, length - nbytes, small);
    return {address, nbytes};
  }

  void free(std::span<std::byte> bytes) {
    const LockGuard lock(mutex);
    Used& used = segment_of(bytes.data());
    used.nbytes_used -= bytes.size();
    Address begin = bytes.data();
    Address end = begin + bytes.size();
    const std::span<std::byte> whole = used.segment->bytes();
    const auto next = free_ranges.find(end);
    if (next != free_ranges.end() && end != whole.data() + whole.size()) {
      end += next->second;
      take(next->first);
    }
    const auto after = free_ranges.lower_bound(begin);
    if (after != free_ranges.begin() && begin != whole.data()) {
      const auto [address, length] = *std::prev(after);
      if (address + length == begin) {
        begin = address;
        take(address);
      }
    }
    give(begin, static_cast<std::size_t>(end - begin), used.small);
    if (used.nbytes_used == 0) retire(whole);
  }

  std::optional<SharedMemory::Location> find(std::span<const std::byte> bytes) const {
    const LockGuard lock(mutex);
    auto found = segments.upper_bound(const_cast<Address>(bytes.data()));
    if (found == segments.begin()) return std::nullopt;
    --found;
    const std::span<std::byte> whole = found->second.segment->bytes();
    const auto offset = static_cast<std::size_t>(bytes.data() - whole.data());
    if (offset > whole.size() || bytes.size() > whole.size() - offset) {
      return std::nullopt;
    }
    return SharedMemory::Location{found->second.segment, offset};
  }

  const SharedMemory::Sizes sizes;
  const pid_t pid = getpid();

 private:
  using BySize = std::set<std::pair<std::size_t, Address>>;

  Used& segment_of(Address address) REQUIRES(mutex) {
    return std::prev(segments.upper_bound(address))->second;
  }

  BySize::iterator add_segment(std::size_t nbytes, bool small) REQUIRES(mutex) {
    const std::size_t usual = small ? kSmallSegment : sizes.segment_bytes;
    auto segment = std::make_shared<Segment>(++last_id, std::max(usual, nbytes));
    const std::span<std::byte> bytes = segment->bytes();
    segments[bytes.data()] = {std::move(segment), small, 0};
    nbytes_idle += bytes.size();
    return give(bytes.data(), bytes.size(), small);
  }

  BySize::iterator give(Address address, std::size_t nbytes, bool small)
      REQUIRES(mutex) {
    free_ranges[address] = nbytes;
    return by_size[small].emplace(nbytes, address).first;
  }

  void take(Address address) REQUIRES(mutex) {
    const auto range = free_ranges.find(address);
    by_size[segment_of(address).small].erase({range->second, address});
    free_ranges.erase(range);
  }

  // Keeps the segment `whole`, which has no block in use, or unmaps it if too much
  // memory is unused.
  void retire(std::span<std::byte> whole) REQUIRES(mutex) {
    nbytes_idle += whole.size();
    if (nbytes_idle <= sizes.keep_free_bytes) return;
    nbytes_idle -= whole.size();
    take(whole.data());
    segments.erase(whole.data());
  }

  mutable Mutex mutex;
  std::uint64_t last_id GUARDED_BY(mutex) = 0;
  std::map<Address, Used> segments GUARDED_BY(mutex);
  std::map<Address, std::size_t> free_ranges GUARDED_BY(mutex);
  BySize by_size[2] GUARDED_BY(mutex);  // free ranges of large and of small segments
  std::size_t nbytes_idle GUARDED_BY(mutex) = 0;  // of segments without a block in use
};

SharedBlock::SharedBlock(std::shared_ptr<Owner> owner, std::span<std::byte> bytes)
    : owner_(std::move(owner)), bytes_(bytes) {}

SharedBlock::SharedBlock(SharedBlock&& other) noexcept
    : owner_(std::move(other.owner_)), bytes_(std::exchange(other.bytes_, {})) {}

SharedBlock& SharedBlock::operator=(SharedBlock&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedBlock::~SharedBlock() {
  // The copy in a forked child frees nothing: the memory belongs to the parent, and
  // another thread of the parent may have held the lock during the fork.
  if (!owner_ || getpid() != owner_->pid) return;
  const std::size_t nbytes = round_up(std::max<std::size_t>(bytes_.size(), 1), kPage);
  owner_->free({bytes_.data(), nbytes});
}

SharedMemory::SharedMemory() : SharedMemory(Sizes{}) {}

SharedMemory::SharedMemory(const Sizes& sizes)
    : owner_(std::make_shared<SharedBlock::Owner>(sizes)) {}

SharedMemory::~SharedMemory() = default;

SharedBlock SharedMemory::allocate(std::size_t nbytes) {
  if (getpid() != owner_->pid) {
    throw std::logic_error("shared memory of process " + std::to_string(owner_->pid) +
                           " cannot be allocated in its forked child " +
                           std::to_string(getpid()));
  }
  const auto bytes =
      owner_->allocate(round_up(std::max<std::size_t>(nbytes, 1), kPage));
  return SharedBlock(owner_, bytes.first(nbytes));
}

std::optional<SharedMemory::Location> SharedMemory::find(
    std::span<const std::byte> bytes) const {
  return owner_->find(bytes);
}

}  // namespace bluecomm
