// Lets libraries that were built on a new Linux run on older ones. setup.py includes this header before every C++ file
// of the libraries.
//
// Functions of which glibc has several versions are linked to the first, which every later glibc has, too. Functions
// that only newer C++ runtimes have, and newer headers call, are defined here. A std::ostringstream must be constructed
// with a mode: its constructor without one is new in GCC 9.
#pragma once

#include <cstddef>
#include <new>

#if defined(__GLIBC__) && (defined(__x86_64__) || defined(__aarch64__))
#ifdef __x86_64__
#define SNNIPU_FIRST_GLIBC "GLIBC_2.2.5"
#else
#define SNNIPU_FIRST_GLIBC "GLIBC_2.17"
#endif
__asm__(".symver exp, exp@" SNNIPU_FIRST_GLIBC);
__asm__(".symver dlsym, dlsym@" SNNIPU_FIRST_GLIBC);
__asm__(".symver dladdr, dladdr@" SNNIPU_FIRST_GLIBC);

#ifdef __GLIBCXX__
// New in glibc 2.32. 0: the process may have more than one thread.
extern "C" {
__attribute__((weak, visibility("hidden"))) char __libc_single_threaded = 0;
}

// New in GCC 11's runtime.
namespace std {
[[noreturn]] __attribute__((weak, visibility("hidden"))) void __throw_bad_array_new_length() { throw bad_alloc(); }
} // namespace std
#endif
#endif
