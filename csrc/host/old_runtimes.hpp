// Libraries built on a new Linux run on older ones: setup.py has every C++ file of theirs begin with this.
//
// Functions whose version glibc has raised are asked for by their first one, which every later glibc has, too; what
// newer C++ runtimes added, and newer headers call, each library brings itself. A std::ostringstream is told its mode:
// its constructor without one is GCC 9's.
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
// Of glibc 2.32. 0: there may be more threads than one.
extern "C" {
__attribute__((weak, visibility("hidden"))) char __libc_single_threaded = 0;
}

// Of GCC 11's runtime.
namespace std {
[[noreturn]] __attribute__((weak, visibility("hidden"))) void __throw_bad_array_new_length() { throw bad_alloc(); }
} // namespace std
#endif
#endif
