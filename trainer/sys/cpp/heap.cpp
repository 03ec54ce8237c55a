// glibc's heap, from which libtorch takes the memory of tensors on the CPU.

#ifdef __linux__
#include <dlfcn.h>
#include <malloc.h>
#endif

// Whether the functions that libtorch allocates with are glibc's. Another allocator, or a sanitizer,
// puts its own in front of them.
extern "C" bool trainer_heap_is_glibc() {
#ifdef __GLIBC__
  void *const glibc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (!glibc)
    return false;
  bool same = true;
  for (const char *name : {"malloc", "free", "posix_memalign"})
    same = same && dlsym(RTLD_DEFAULT, name) == dlsym(glibc, name);
  dlclose(glibc);
  return same;
#else
  return false;
#endif
}

// Sets glibc's limits, in bytes: an allocation of `map` bytes or more is mapped by itself, more than
// `trim` free bytes at the end of the heap are returned to the system (-1: never), and the heap grows
// by `pad` bytes more than it needs. Returns false if glibc refuses the first, and sets no other then.
extern "C" bool trainer_heap_limit(int map, int trim, int pad) {
#ifdef __GLIBC__
  if (!mallopt(M_MMAP_THRESHOLD, map))
    return false;
  mallopt(M_TRIM_THRESHOLD, trim);
  mallopt(M_TOP_PAD, pad);
  return true;
#else
  (void)map, (void)trim, (void)pad;
  return false;
#endif
}

// Returns all free memory of the heap to the system.
extern "C" void trainer_heap_trim() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}
