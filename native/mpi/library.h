#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// The few functions of MPI that bluecomm uses, without MPI's types and constants, which
// differ between implementations. Nothing here links to an MPI: open_library() binds
// one that is found at run time.
//
// Threads: as MPI's thread level says; with kSerialized or more one thread at a time.
// Every function throws std::runtime_error with MPI's own text when MPI reports an
// error; only duplicate(), init() and finalize() block.

namespace bluecomm::mpi {

enum class Threads { kSingle, kFunneled, kSerialized, kMultiple };

inline constexpr int kAnySource = -1;

// Tags that every MPI allows are 0 .. kMaxTag.
inline constexpr int kMaxTag = 32767;

// An operation that has been started. Its memory stays alive until test() or cancel()
// has ended it. Opaque: the bits of the implementation's own handle.
enum class RequestHandle : std::uint64_t {};

// How an operation ended. The source and the length are those of a receive.
struct Completion {
  int source = kAnySource;
  std::size_t nbytes = 0;
  bool cancelled = false;
};

// One of several operations.
struct IndexedCompletion {
  std::size_t index = 0;
  Completion done;
};

// Errors of its operations are reported to the caller, they do not end the program.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual int rank() = 0;
  virtual int size() = 0;
  // The same processes, apart from all messages of this one. Collective.
  virtual std::shared_ptr<Communicator> duplicate() = 0;

  virtual RequestHandle isend(std::span<const std::byte> bytes, int to, int tag) = 0;
  // As isend(), but it does not end before its receive has been started.
  virtual RequestHandle issend(std::span<const std::byte> bytes, int to, int tag) = 0;
  // `from` may be kAnySource. Takes messages of at most the length of `into`.
  virtual RequestHandle irecv(std::span<std::byte> into, int from, int tag) = 0;
  virtual RequestHandle ibcast(std::span<std::byte> bytes, int root) = 0;
  // Nothing while the operation goes on; after its end the request is no more.
  virtual std::optional<Completion> test(RequestHandle& request) = 0;
  // Adds to `ended` what has ended of `requests`, which are no more then. May move
  // messages only when it finds nothing, and not look again after that.
  virtual void test_some(std::span<RequestHandle> requests,
                         std::vector<IndexedCompletion>& ended) = 0;
  // Asks for the end of a receive, which test() then tells of.
  virtual void cancel(RequestHandle& request) = 0;
};

class Library {
 public:
  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  virtual ~Library() = default;

  // "Open MPI", "MPICH" or "MPI standard ABI".
  virtual std::string abi() = 0;
  // What the implementation calls itself, first line.
  virtual std::string version() = 0;

  virtual bool initialized() = 0;
  virtual bool finalized() = 0;
  // The level that was got; at most `wanted`, often.
  virtual Threads init(Threads wanted) = 0;
  virtual Threads threads() = 0;
  // The calling thread is the one that initialized MPI.
  virtual bool on_main_thread() = 0;
  virtual void finalize() = 0;
  // Calls `body` when MPI_Finalize begins, whoever calls that and on that thread. MPI
  // may still be called then, and finalized() says no.
  virtual void before_finalize(std::function<void()> body) = 0;

  virtual std::shared_ptr<Communicator> world() = 0;
  // By the handle that Fortran has for it (mpi4py's py2f), the only one that is the
  // same in all implementations. Throws std::invalid_argument for the null handle.
  virtual std::shared_ptr<Communicator> from_fortran(int handle) = 0;
};

// Binds the libmpi at `path`, which is a path or a name that the dynamic linker finds.
// It stays loaded. Throws std::runtime_error: it cannot be loaded, lacks a function, is
// of no known kind, or too old.
std::shared_ptr<Library> open_library(const std::string& path);

// Paths of the MPI libraries that this process has loaded.
std::vector<std::string> loaded_libraries();

}  // namespace bluecomm::mpi
