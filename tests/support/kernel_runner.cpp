// Calls the C functions of a native library by messages on standard input. An emulator runs it for libraries of another
// machine or system. tests/support/emulated_library.py sends the messages.
//
// The first line of output: the library's instruction set, and the runtime of its threads.
//
// A call: the function's name and its arguments. Each argument has a tag and a value: b (a buffer: its bytes), s (a
// structure: its bytes, and the number of its pointers that are not null, each an offset and a buffer), i (an integer).
// The answer: d, the result, and the bytes of structures and buffers after the call. A function that asks for room
// first sends r and the number of slots. It receives `most`, 1 or 0, and the number of new pointers in the form of a
// structure's. Numbers have 64 bits. The length of a name, a buffer or a structure precedes it.
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
#include <list>
#include <memory>
#include <string>
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

// Call a function that takes these arguments; addresses are integers, too.
std::int64_t call(void *library, const std::string &name, const std::vector<std::int64_t> &arguments) {
  void *const function = symbol(library, name.c_str());
  if (!function)
    fail("no function " + name);
  void *const address = reinterpret_cast<void *>(arguments.at(0));
  if (name == "snnipu_set_workers") {
    reinterpret_cast<decltype(&snnipu_set_workers)>(function)(arguments[0], arguments[1]);
    return 0;
  }
  if (name == "snnipu_packed_size")
    return reinterpret_cast<decltype(&snnipu_packed_size)>(function)(arguments[0], arguments[1]);
  if (name == "snnipu_fingerprint")
    return reinterpret_cast<decltype(&snnipu_fingerprint)>(function)(address, arguments[1], arguments[2]);
  // All other functions take a structure.
  if (name.rfind("snnipu_neuron_", 0) != 0)
    static_cast<snnipu_sparse_call *>(address)->room = room;
  return reinterpret_cast<int (*)(void *)>(function)(address);
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
  std::uint64_t length;
  while (readBytes(&length, sizeof(length))) {
    std::string name(length, ' ');
    readBytes(&name[0], length);
    std::vector<std::int64_t> arguments(number<std::uint64_t>());
    Buffers buffers;
    current = &buffers;
    std::list<std::vector<unsigned char>> structures;
    for (std::int64_t &argument : arguments) {
      const char tag = number<char>();
      if (tag == 'b') {
        argument = reinterpret_cast<std::int64_t>(readBuffer(buffers).data());
      } else if (tag == 's') {
        auto &bytes = structures.emplace_back(number<std::uint64_t>());
        readBytes(bytes.data(), bytes.size());
        readPointers(buffers, bytes.data());
        argument = reinterpret_cast<std::int64_t>(bytes.data());
      } else {
        argument = number<std::int64_t>();
      }
    }
    const std::int64_t result = call(library, name, arguments);
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
