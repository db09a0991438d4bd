// Compares the declarations in native/mpi with those of a real header. It compiles if
// they agree; it is never run. HEADER is mpi.h or mpi_abi.h, ABI the class to compare.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#define MPI_NO_CPPBIND 1
#include HEADER

#include <cstddef>
#include <string_view>
#include <type_traits>

#include "mpi/abi_mpich.h"
#include "mpi/abi_openmpi.h"
#include "mpi/abi_standard.h"
#include "mpi/functions.h"

using bluecomm::mpi::MpichAbi;
using bluecomm::mpi::MpiFunctions;
using bluecomm::mpi::OpenMpiAbi;
using bluecomm::mpi::StandardAbi;

// Whether a call passes both types alike: both pointers, or both integers of one size.
template <typename Ours, typename Theirs>
constexpr bool kSame = sizeof(Ours) == sizeof(Theirs) &&
                       std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> &&
                       (std::is_integral_v<Ours> || std::is_enum_v<Ours>) ==
                           (std::is_integral_v<Theirs> || std::is_enum_v<Theirs>);

template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename R, typename... Ours, typename... Theirs>
  requires(sizeof...(Ours) == sizeof...(Theirs))
struct SameCall<R (*)(Ours...), R (*)(Theirs...)>
    : std::bool_constant<(kSame<Ours, Theirs> && ...)> {};

#define CHECK_FUNCTION(member, name)                                                   \
  static_assert(SameCall<decltype(MpiFunctions<ABI>::member), decltype(&name)>::value, \
                #name);
EACH_MPI_FUNCTION(CHECK_FUNCTION)

static_assert(kSame<ABI::Comm, MPI_Comm> && kSame<ABI::Datatype, MPI_Datatype>);
static_assert(kSame<ABI::Errhandler, MPI_Errhandler>);
static_assert(kSame<ABI::Request, MPI_Request>);

static_assert(sizeof(ABI::MpiStatus) == sizeof(MPI_Status));
static_assert(alignof(ABI::MpiStatus) >= alignof(MPI_Status));
static_assert(offsetof(ABI::MpiStatus, source) == offsetof(MPI_Status, MPI_SOURCE));
static_assert(offsetof(ABI::MpiStatus, tag) == offsetof(MPI_Status, MPI_TAG));
static_assert(offsetof(ABI::MpiStatus, error) == offsetof(MPI_Status, MPI_ERROR));

static_assert(ABI::kSuccess == MPI_SUCCESS);
static_assert(ABI::kAnySource == MPI_ANY_SOURCE);
static_assert(ABI::kSingle == MPI_THREAD_SINGLE);
static_assert(ABI::kFunneled == MPI_THREAD_FUNNELED);
static_assert(ABI::kSerialized == MPI_THREAD_SERIALIZED);
static_assert(ABI::kMultiple == MPI_THREAD_MULTIPLE);
static_assert(ABI::kErrorStringBytes >= MPI_MAX_ERROR_STRING);
static_assert(ABI::kVersionStringBytes >= MPI_MAX_LIBRARY_VERSION_STRING);

// Whether the header defines the predefined handles by the same numbers or names.
template <typename Abi>
constexpr bool handles_agree(std::string_view world, std::string_view self,
                             std::string_view null, std::string_view byte,
                             std::string_view errors) {
  const auto names = [](std::string_view text, std::string_view name) {
    return text.find(name) != text.npos;
  };
  if constexpr (std::is_same_v<Abi, OpenMpiAbi>) {
    return names(world, Abi::kCommWorld) && names(self, Abi::kCommSelf) &&
           names(null, Abi::kCommNull) && names(byte, Abi::kByte) &&
           names(errors, Abi::kErrorsReturn);
  } else if constexpr (std::is_same_v<Abi, MpichAbi>) {
    return names(world, "0x44000000") && Abi::comm_world() == 0x44000000 &&
           names(self, "0x44000001") && Abi::comm_self() == 0x44000001 &&
           names(null, "0x04000000") && Abi::comm_null() == 0x04000000 &&
           names(byte, "0x4c00010d") && Abi::byte() == 0x4c00010d &&
           names(errors, "0x54000001") && Abi::errors_return() == 0x54000001;
  } else {
    return names(world, "0x00000101") && Abi::kCommWorld == 0x101 &&
           names(self, "0x00000102") && Abi::kCommSelf == 0x102 &&
           names(null, "0x00000100") && Abi::kCommNull == 0x100 &&
           names(byte, "0x00000247") && Abi::kByte == 0x247 &&
           names(errors, "0x00000143") && Abi::kErrorsReturn == 0x143;
  }
}
#define TEXT_OF(macro) TEXT(macro)
#define TEXT(...) #__VA_ARGS__
static_assert(handles_agree<ABI>(TEXT_OF(MPI_COMM_WORLD), TEXT_OF(MPI_COMM_SELF),
                                 TEXT_OF(MPI_COMM_NULL), TEXT_OF(MPI_BYTE),
                                 TEXT_OF(MPI_ERRORS_RETURN)));
