// Calls the C functions of a native library by messages on standard input. An emulator runs it for libraries of another
// machine or system. tests/support/emulated_library.py sends the messages.
//
// The first line of output: the library's instruction set, and the runtime of its threads.
//
// A call: the function's name and its arguments. Each argument has a tag and a value: n (a null pointer), a (an
// address in this process), b (a buffer: its bytes), s (a structure: its bytes, and the number of its pointers that
// are not null, each an offset and a buffer), i (an integer), d (a double). The answer: d, the result, and the bytes
// of structures and buffers after the call. A function that asks for room first sends r and the number of slots. It
// receives `most`, 1 or 0, and the number of new pointers in the form of a structure's. Numbers have 64 bits. The
// length of a name, a buffer or a structure precedes it.
#include "host/neuron.h"
#include "host/snnipu.h"
#include "host/sparse.h"

#if defined(_WIN32)
#include <fcntl.h>
#include <io.h>
#include <windows.h>
#else
#include <dlfcn.h>
#endif

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

[[noreturn]] void fail(const std::string &message) {
  std::fprintf(stderr, "kernel_runner: %s\n", message.c_str());
  std::exit(2);
}

#if defined(_WIN32)
void *open(const char *path) { return reinterpret_cast<void *>(LoadLibraryA(path)); }
std::string whyNot() { return "error " + std::to_string(GetLastError()); }
void *symbol(void *library, const char *name) {
  return reinterpret_cast<void *>(GetProcAddress(static_cast<HMODULE>(library), name));
}
#else
void *open(const char *path) { return dlopen(path, RTLD_NOW | RTLD_GLOBAL); }
std::string whyNot() { return dlerror(); }
void *symbol(void *library, const char *name) { return dlsym(library, name); }
#endif

// Return false at the end of the input.
bool readBytes(void *to, std::size_t count) {
  const std::size_t got = std::fread(to, 1, count, stdin);
  if (got != count && got != 0)
    fail("the input breaks off");
  return got == count;
}
template <typename T> T number() {
  T value;
  if (!readBytes(&value, sizeof(value)))
    fail("the input breaks off");
  return value;
}

// A buffer between two margins, which must stay unchanged.
class Buffer {
public:
  explicit Buffer(std::size_t size) : size_(size), bytes_(size + 2 * margin, mark) {}
  void *data() { return bytes_.data() + margin; }
  std::size_t size() const { return size_; }
  bool intact() const {
    for (std::size_t i = 0; i < margin; ++i)
      if (bytes_[i] != mark || bytes_[margin + size_ + i] != mark)
        return false;
    return true;
  }

private:
  static constexpr std::size_t margin = 256;
  static constexpr unsigned char mark = 0xa5;
  std::size_t size_;
  std::vector<unsigned char> bytes_;
};

struct Argument {
  char tag;
  void *pointer = nullptr;
  std::int64_t integer = 0;
  double real = 0;
};

template <typename T> T as(const Argument &argument) {
  if constexpr (std::is_pointer_v<T>) {
    if (!std::strchr("nabs", argument.tag))
      fail("a pointer was expected");
    return static_cast<T>(argument.pointer);
  } else {
    if (argument.tag != (std::is_floating_point_v<T> ? 'd' : 'i'))
      fail("a number of another kind was expected");
    return std::is_floating_point_v<T> ? static_cast<T>(argument.real) : static_cast<T>(argument.integer);
  }
}

using Call = std::function<std::int64_t(const std::vector<Argument> &)>;

template <typename R, typename... A, std::size_t... I>
std::int64_t apply(R (*function)(A...), const std::vector<Argument> &arguments, std::index_sequence<I...>) {
  if constexpr (std::is_void_v<R>) {
    function(as<A>(arguments[I])...);
    return 0;
  } else {
    return static_cast<std::int64_t>(function(as<A>(arguments[I])...));
  }
}

template <typename R, typename... A> Call bind(void *library, const char *name, R (*)(A...)) {
  const auto function = reinterpret_cast<R (*)(A...)>(symbol(library, name));
  if (!function)
    fail(std::string("no function ") + name);
  return [function, name](const std::vector<Argument> &arguments) {
    if (arguments.size() != sizeof...(A))
      fail(std::string("wrong number of arguments of ") + name);
    return apply(function, arguments, std::index_sequence_for<A...>{});
  };
}

// Read the next bytes into a new buffer.
using Buffers = std::vector<std::unique_ptr<Buffer>>;
Buffer &readBuffer(Buffers &buffers) {
  buffers.push_back(std::make_unique<Buffer>(number<std::uint64_t>()));
  Buffer &buffer = *buffers.back();
  if (buffer.size() != 0)
    readBytes(buffer.data(), buffer.size());
  return buffer;
}

// Read the next pointers into a structure.
void readPointers(Buffers &buffers, unsigned char *structure) {
  for (std::uint64_t left = number<std::uint64_t>(); left != 0; --left) {
    const auto offset = number<std::uint64_t>();
    void *const pointer = readBuffer(buffers).data();
    std::memcpy(structure + offset, &pointer, sizeof(pointer));
  }
}

// The buffers of the running call.
Buffers *current = nullptr;

void room(snnipu_sparse_call *call) {
  std::fputc('r', stdout);
  std::fwrite(&call->output_slots, sizeof(call->output_slots), 1, stdout);
  std::fflush(stdout);
  const auto most = number<std::int64_t>();
  readPointers(*current, reinterpret_cast<unsigned char *>(call));
  call->most = most;
}

// Return a call of a function that takes a structure.
template <typename T> Call bindCall(void *library, const std::string &name) {
  const auto function = reinterpret_cast<int (*)(T *)>(symbol(library, name.c_str()));
  if (!function)
    fail("no function " + name);
  return [function](const std::vector<Argument> &arguments) {
    T *const call = as<T *>(arguments.at(0));
    if constexpr (std::is_same_v<T, snnipu_sparse_call>)
      call->room = room;
    return static_cast<std::int64_t>(function(call));
  };
}

Call find(void *library, const std::string &name) {
#define PLAIN(NAME)                                                                                                    \
  if (name == #NAME)                                                                                                   \
    return bind(library, #NAME, static_cast<decltype(&NAME)>(nullptr));
  PLAIN(snnipu_set_workers)
  PLAIN(snnipu_packed_size)
  PLAIN(snnipu_fingerprint)
  return name.rfind("snnipu_neuron_", 0) == 0 ? bindCall<snnipu_neuron_call>(library, name)
                                              : bindCall<snnipu_sparse_call>(library, name);
}

} // namespace

int main(int count, char **words) {
#if defined(_WIN32)
  _setmode(_fileno(stdin), _O_BINARY);
  _setmode(_fileno(stdout), _O_BINARY);
#endif
  // The last library is called; earlier ones are its OpenMP runtime, which must be loaded first.
  void *library = nullptr;
  for (int i = 1; i < count; ++i)
    if (!(library = open(words[i])))
      fail(std::string(words[i]) + " cannot be loaded: " + whyNot());
  if (!library)
    fail("usage: kernel_runner [LIBRARY...] LIBRARY");
  for (const char *name : {"snnipu_isa", "snnipu_thread_runtime", "snnipu_best_isa"}) {
    const auto function = reinterpret_cast<const char *(*)()>(symbol(library, name));
    if (!function)
      fail(std::string("no function ") + name);
    std::printf("%s%c", function(), std::strcmp(name, "snnipu_best_isa") ? ' ' : '\n');
  }
  std::fflush(stdout);
  std::map<std::string, Call> calls;
  std::uint64_t length;
  while (readBytes(&length, sizeof(length))) {
    std::string name(length, ' ');
    readBytes(&name[0], length);
    std::vector<Argument> arguments(number<std::uint64_t>());
    Buffers buffers;
    current = &buffers;
    std::list<std::vector<unsigned char>> structures;
    for (Argument &argument : arguments) {
      argument.tag = number<char>();
      if (argument.tag == 'b') {
        argument.pointer = readBuffer(buffers).data();
      } else if (argument.tag == 's') {
        structures.emplace_back(number<std::uint64_t>());
        auto &bytes = structures.back();
        readBytes(bytes.data(), bytes.size());
        readPointers(buffers, bytes.data());
        argument.pointer = bytes.data();
      } else if (argument.tag == 'a') {
        argument.pointer = reinterpret_cast<void *>(number<std::uint64_t>());
      } else if (argument.tag == 'i') {
        argument.integer = number<std::int64_t>();
      } else if (argument.tag == 'd') {
        argument.real = number<double>();
      }
    }
    if (calls.find(name) == calls.end())
      calls[name] = find(library, name);
    const std::int64_t result = calls[name](arguments);
    std::fputc('d', stdout);
    std::fwrite(&result, sizeof(result), 1, stdout);
    for (const auto &structure : structures)
      std::fwrite(structure.data(), 1, structure.size(), stdout);
    for (const auto &buffer : buffers) {
      if (!buffer->intact())
        fail(name + " wrote outside of its buffers");
      std::fwrite(buffer->data(), 1, buffer->size(), stdout);
    }
    std::fflush(stdout);
  }
  return 0;
}
