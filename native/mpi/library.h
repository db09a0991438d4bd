#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

// The few functions of MPI that bluecomm uses, without MPI's types and constants,
// which differ between implementations. bluecomm does not link to an MPI library:
// open_library() binds one that is found at run time.
//
// Threads: MPI's thread level applies. With kSerialized or higher, any thread may call,
// but only one at a time. Every function throws std::runtime_error with MPI's own text
// if MPI reports an error. Only duplicate(), init() and finalize() block.

namespace bluecomm::mpi {

enum class ThreadLevel { kSingle, kFunneled, kSerialized, kMultiple };

inline constexpr int kAnySource = -1;

// Every MPI implementation allows tags from 0 to kMaxTag.
inline constexpr int kMaxTag = 32767;

// A request that has been started. Its memory must stay alive until test() has
// returned its completion. Opaque: the bits of the implementation's own handle.
enum class RequestHandle : std::uint64_t {};

// How a request completed. The source and the length are those of a receive.
struct Completion {
  int source = kAnySource;
  std::size_t nbytes = 0;
  bool cancelled = false;
};

// The completion of one of several requests.
struct IndexedCompletion {
  std::size_t index = 0;
  Completion done;
};

// A communicator. Errors of its operations are returned to the caller and do not abort
// the program.
class Communicator {
 public:
  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  virtual int rank() = 0;
  virtual int size() = 0;
  // Returns a communicator of the same processes whose messages are separate from this
  // one's. Collective.
  virtual std::shared_ptr<Communicator> duplicate() = 0;

  virtual RequestHandle isend(std::span<const std::byte> bytes, int to, int tag) = 0;
  // Like isend(), but does not complete before its receive has been started.
  virtual RequestHandle issend(std::span<const std::byte> bytes, int to, int tag) = 0;
  // Receives a message of at most the length of `into`. `from` may be kAnySource.
  virtual RequestHandle irecv(std::span<std::byte> into, int from, int tag) = 0;
  virtual RequestHandle ibcast(std::span<std::byte> bytes, int root) = 0;
  // Returns nothing while the request is under way. Once it has completed, the request
  // is no longer valid.
  virtual std::optional<Completion> test(RequestHandle& request) = 0;
  // Appends the completions among `requests` to `ended`; those requests are no longer
  // valid. MPI may make progress only after it has found none complete, and then return
  // without testing them again.
  virtual void test_some(std::span<RequestHandle> requests,
                         std::vector<IndexedCompletion>& ended) = 0;
  // Asks MPI to cancel a receive. test() reports its completion.
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
  // The first line of the implementation's own version text.
  virtual std::string version() = 0;

  virtual bool initialized() = 0;
  virtual bool finalized() = 0;
  // Returns the thread level that MPI provides, often no more than `wanted`.
  virtual ThreadLevel init(ThreadLevel wanted) = 0;
  virtual ThreadLevel thread_level() = 0;
  // Whether the calling thread is the one that initialized MPI.
  virtual bool on_main_thread() = 0;
  virtual void finalize() = 0;
  // Calls `body` when MPI_Finalize begins, on the thread that calls it. MPI may still
  // be called then, and finalized() still returns false.
  virtual void before_finalize(std::function<void()> body) = 0;

  virtual std::shared_ptr<Communicator> world() = 0;
  // Returns the communicator with this Fortran handle (mpi4py's py2f), the only kind
  // of handle that is the same in all implementations. Throws std::invalid_argument
  // for the null handle.
  virtual std::shared_ptr<Communicator> from_fortran(int handle) = 0;
};

// Binds the libmpi at `path`, which is a path or a name that the dynamic linker finds.
// It stays loaded. Throws std::runtime_error if the library cannot be loaded, lacks a
// function, is of no known ABI, or is too old.
std::shared_ptr<Library> open_library(const std::string& path);

// Returns the paths of the MPI libraries that this process has loaded.
std::vector<std::string> loaded_libraries();

}  // namespace bluecomm::mpi
