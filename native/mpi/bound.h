#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "mpi/functions.h"
#include "mpi/library.h"
#include "mpi/symbols.h"

// Library and Communicator for one ABI. The ABI's constants, handles and types are not
// visible outside this file.

namespace bluecomm::mpi {

// The functions and constants of a loaded library, with helpers that call them.
template <typename Abi>
class Calls {
 public:
  explicit Calls(void* library) : abi(library) {
#define BIND(member, name) \
  functions_.member = function<decltype(functions_.member)>(library, #name);
    EACH_MPI_FUNCTION(BIND)
#undef BIND
  }

  const MpiFunctions<Abi>* operator->() const { return &functions_; }

  // Throws unless `code`, which the function `name` returned, is success.
  void check(const char* name, int code) const {
    if (code == Abi::kSuccess) return;
    std::array<char, Abi::kErrorStringBytes + 1> text{};
    int length = 0;
    functions_.error_string(code, text.data(), &length);
    throw std::runtime_error(std::string(name) + ": " + text.data());
  }

  const Abi abi;

 private:
  MpiFunctions<Abi> functions_;
};

inline int to_count(std::size_t nbytes) {
  if (nbytes > static_cast<std::size_t>(std::numeric_limits<int>::max())) {
    throw std::invalid_argument("MPI counts bytes in an int; got " +
                                std::to_string(nbytes));
  }
  return static_cast<int>(nbytes);
}

template <typename Abi>
class BoundCommunicator final : public Communicator {
 public:
  BoundCommunicator(std::shared_ptr<const Calls<Abi>> calls, typename Abi::Comm comm)
      : calls_(std::move(calls)), mpi_(*calls_), comm_(comm) {}

  int rank() override {
    int rank = 0;
    mpi_.check("MPI_Comm_rank", mpi_->comm_rank(comm_, &rank));
    return rank;
  }

  int size() override {
    int size = 0;
    mpi_.check("MPI_Comm_size", mpi_->comm_size(comm_, &size));
    return size;
  }

  std::shared_ptr<Communicator> duplicate() override {
    auto copy = std::make_shared<BoundCommunicator>(calls_, mpi_.abi.comm_null());
    mpi_.check("MPI_Comm_dup", mpi_->comm_dup(comm_, &copy->comm_));
    mpi_.check("MPI_Comm_set_errhandler",
               mpi_->comm_set_errhandler(copy->comm_, mpi_.abi.errors_return()));
    return copy;
  }

  RequestHandle isend(std::span<const std::byte> bytes, int to, int tag) override {
    typename Abi::Request request;
    mpi_.check("MPI_Isend", mpi_->isend(bytes.data(), to_count(bytes.size()),
                                        mpi_.abi.byte(), to, tag, comm_, &request));
    return wrap(request);
  }

  RequestHandle issend(std::span<const std::byte> bytes, int to, int tag) override {
    typename Abi::Request request;
    mpi_.check("MPI_Issend", mpi_->issend(bytes.data(), to_count(bytes.size()),
                                          mpi_.abi.byte(), to, tag, comm_, &request));
    return wrap(request);
  }

  RequestHandle irecv(std::span<std::byte> into, int from, int tag) override {
    typename Abi::Request request;
    const int source = from == kAnySource ? Abi::kAnySource : from;
    mpi_.check("MPI_Irecv", mpi_->irecv(into.data(), to_count(into.size()),
                                        mpi_.abi.byte(), source, tag, comm_, &request));
    return wrap(request);
  }

  RequestHandle ibcast(std::span<std::byte> bytes, int root) override {
    typename Abi::Request request;
    mpi_.check("MPI_Ibcast", mpi_->ibcast(bytes.data(), to_count(bytes.size()),
                                          mpi_.abi.byte(), root, comm_, &request));
    return wrap(request);
  }

  std::optional<Completion> test(RequestHandle& request) override {
    typename Abi::Request own = unwrap(request);
    typename Abi::MpiStatus status{};
    int flag = 0;
    mpi_.check("MPI_Test", mpi_->test(&own, &flag, &status));
    request = wrap(own);
    if (flag == 0) return std::nullopt;
    return completion_of(status);
  }

  void test_some(std::span<RequestHandle> requests,
                 std::vector<IndexedCompletion>& ended) override {
    // Reused between calls. Not members, because threads share a communicator.
    static thread_local std::vector<typename Abi::Request> own;
    static thread_local std::vector<int> indices;
    static thread_local std::vector<typename Abi::MpiStatus> statuses;
    own.clear();
    for (const RequestHandle request : requests) own.push_back(unwrap(request));
    indices.resize(own.size());
    statuses.resize(own.size());
    int count = 0;
    const int code = mpi_->testsome(to_count(own.size()), own.data(), &count,
                                    indices.data(), statuses.data());
    for (int i = 0; code != Abi::kSuccess && i < count; ++i) {
      mpi_.check("MPI_Testsome", statuses[i].error);
    }
    mpi_.check("MPI_Testsome", code);
    for (int i = 0; i < count; ++i) {
      const auto index = static_cast<std::size_t>(indices[i]);
      requests[index] = wrap(own[index]);
      ended.push_back({index, completion_of(statuses[i])});
    }
  }

  void cancel(RequestHandle& request) override {
    typename Abi::Request own = unwrap(request);
    mpi_.check("MPI_Cancel", mpi_->cancel(&own));
    request = wrap(own);
  }

 private:
  using Bits = std::conditional_t<sizeof(typename Abi::Request) == 8, std::uint64_t,
                                  std::uint32_t>;

  Completion completion_of(const typename Abi::MpiStatus& status) const {
    int cancelled = 0;
    int count = 0;
    mpi_.check("MPI_Test_cancelled", mpi_->test_cancelled(&status, &cancelled));
    if (cancelled != 0) return Completion{.cancelled = true};
    mpi_.check("MPI_Get_count", mpi_->get_count(&status, mpi_.abi.byte(), &count));
    return Completion{status.source, static_cast<std::size_t>(count), false};
  }

  static RequestHandle wrap(typename Abi::Request request) {
    return RequestHandle{std::bit_cast<Bits>(request)};
  }
  static typename Abi::Request unwrap(RequestHandle request) {
    return std::bit_cast<typename Abi::Request>(static_cast<Bits>(request));
  }

  const std::shared_ptr<const Calls<Abi>> calls_;
  const Calls<Abi>& mpi_;
  typename Abi::Comm comm_;
};

template <typename Abi>
class BoundLibrary final : public Library {
 public:
  explicit BoundLibrary(void* library)
      : calls_(std::make_shared<const Calls<Abi>>(library)), mpi_(*calls_) {
    int version = 0;
    int subversion = 0;
    mpi_.check("MPI_Get_version", mpi_->get_version(&version, &subversion));
    if (version < 3) {
      throw std::runtime_error("it implements MPI " + std::to_string(version) + "." +
                               std::to_string(subversion) +
                               ", but at least 3.0 is needed");
    }
  }

  std::string abi() override { return std::string(Abi::kName); }

  std::string version() override {
    std::array<char, Abi::kVersionStringBytes + 1> text{};
    int length = 0;
    mpi_.check("MPI_Get_library_version",
               mpi_->get_library_version(text.data(), &length));
    const std::string all(text.data());
    return all.substr(0, all.find('\n'));
  }

  bool initialized() override { return flag("MPI_Initialized", mpi_->initialized); }
  bool finalized() override { return flag("MPI_Finalized", mpi_->finalized); }

  ThreadLevel init(ThreadLevel wanted) override {
    int provided = Abi::kSingle;
    mpi_.check("MPI_Init_thread",
               mpi_->init_thread(nullptr, nullptr, to_level(wanted), &provided));
    return from_level(provided);
  }

  ThreadLevel thread_level() override {
    int provided = Abi::kSingle;
    mpi_.check("MPI_Query_thread", mpi_->query_thread(&provided));
    return from_level(provided);
  }

  bool on_main_thread() override {
    return flag("MPI_Is_thread_main", mpi_->is_thread_main);
  }
  void finalize() override { mpi_.check("MPI_Finalize", mpi_->finalize()); }

  // MPI_Finalize deletes the attributes of MPI_COMM_SELF before anything else.
  void before_finalize(std::function<void()> body) override {
    int key = 0;
    mpi_.check("MPI_Comm_create_keyval",
               mpi_->comm_create_keyval(&copy_nothing, &run_and_free, &key, nullptr));
    auto owned = std::make_unique<std::function<void()>>(std::move(body));
    mpi_.check("MPI_Comm_set_attr",
               mpi_->comm_set_attr(mpi_.abi.comm_self(), key, owned.get()));
    static_cast<void>(owned.release());  // run_and_free() owns it
  }

  std::shared_ptr<Communicator> world() override {
    return std::make_shared<BoundCommunicator<Abi>>(calls_, mpi_.abi.comm_world());
  }

  std::shared_ptr<Communicator> from_fortran(int handle) override {
    const typename Abi::Comm comm = mpi_.abi.from_fortran(handle);
    if (comm == typename Abi::Comm{} || comm == mpi_.abi.comm_null()) {
      throw std::invalid_argument("the communicator is MPI_COMM_NULL");
    }
    return std::make_shared<BoundCommunicator<Abi>>(calls_, comm);
  }

 private:
  // MPI calls these, so no exception may leave them.
  static int copy_nothing(typename Abi::Comm, int, void*, void*, void*,
                          int* is_copied) noexcept {
    *is_copied = 0;
    return Abi::kSuccess;
  }
  static int run_and_free(typename Abi::Comm, int, void* value, void*) noexcept {
    const std::unique_ptr<std::function<void()>> body(
        static_cast<std::function<void()>*>(value));
    try {
      (*body)();
    } catch (const std::exception&) {
      // MPI is finalized whatever happens here.
    }
    return Abi::kSuccess;
  }

  bool flag(const char* name, int (*ask)(int*)) {
    int answer = 0;
    mpi_.check(name, ask(&answer));
    return answer != 0;
  }

  static int to_level(ThreadLevel threads) {
    switch (threads) {
      case ThreadLevel::kSingle:
        return Abi::kSingle;
      case ThreadLevel::kFunneled:
        return Abi::kFunneled;
      case ThreadLevel::kSerialized:
        return Abi::kSerialized;
      case ThreadLevel::kMultiple:
        return Abi::kMultiple;
    }
    return Abi::kSingle;
  }

  static ThreadLevel from_level(int level) {
    if (level >= Abi::kMultiple) return ThreadLevel::kMultiple;
    if (level >= Abi::kSerialized) return ThreadLevel::kSerialized;
    return level >= Abi::kFunneled ? ThreadLevel::kFunneled : ThreadLevel::kSingle;
  }

  const std::shared_ptr<const Calls<Abi>> calls_;
  const Calls<Abi>& mpi_;
};

}  // namespace bluecomm::mpi
