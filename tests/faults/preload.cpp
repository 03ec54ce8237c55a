// A library that a child process of the tests loads before the C library (`LD_PRELOAD`). It replaces
// functions of the C library, which Rust and libtorch call, in order to
//
// - let one large allocation fail,
// - let one kind of operation on some files fail,
// - record all changes to the files of a folder,
// - kill the process before one of these changes, or in the middle of a write.
//
// The process controls it by opening files that do not exist: see `control`.

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

// ── Allocations ──────────────────────────────────────────────────────────────────────────────────

static const size_t LARGE = 1 << 20;
static std::atomic<long> fail_at{0};  // the number of the allocation that fails; 0 for none
static std::atomic<long> seen{0};

static bool fails(size_t bytes) {
  if (bytes <= LARGE || fail_at.load() == 0 || ++seen != fail_at.load()) return false;
  errno = ENOMEM;
  return true;
}

extern "C" void* __libc_malloc(size_t);
extern "C" void* __libc_calloc(size_t, size_t);
extern "C" void* __libc_realloc(void*, size_t);
extern "C" void* __libc_memalign(size_t, size_t);

EXPORT void* malloc(size_t bytes) { return fails(bytes) ? nullptr : __libc_malloc(bytes); }

EXPORT void* calloc(size_t count, size_t size) {
  size_t bytes;
  if (__builtin_mul_overflow(count, size, &bytes)) bytes = SIZE_MAX;
  return fails(bytes) ? nullptr : __libc_calloc(count, size);
}

EXPORT void* realloc(void* old, size_t bytes) { return fails(bytes) ? nullptr : __libc_realloc(old, bytes); }

EXPORT void* memalign(size_t align, size_t bytes) {
  return fails(bytes) ? nullptr : __libc_memalign(align, bytes);
}

EXPORT void* aligned_alloc(size_t align, size_t bytes) { return memalign(align, bytes); }

EXPORT int posix_memalign(void** to, size_t align, size_t bytes) {
  void* memory = memalign(align, bytes);
  if (memory == nullptr) return ENOMEM;
  *to = memory;
  return 0;
}

template <typename F>
static F next(const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

EXPORT void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if ((flags & MAP_ANONYMOUS) != 0 && fails(bytes)) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}

// A thread needs memory for its stack.
EXPORT int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*), void* with) {
  if (fails(SIZE_MAX)) return EAGAIN;
  static auto real = next<int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*)>("pthread_create");
  return real(thread, attributes, run, with);
}

// ── Operations that fail ─────────────────────────────────────────────────────────────────────────

static pthread_mutex_t refusal = PTHREAD_MUTEX_INITIALIZER;
static std::atomic<bool> refusing{false};
static std::string* refused_kind = nullptr;
static std::string* refused_path = nullptr;  // a part of the path
static int refused_with = 0;                 // the value of errno
static long refused_from = 0;                // the number of the first operation that fails, from 1
static long refused_count = 0;               // the number of operations that fail; 0 for all
static long refusable = 0;
static std::atomic<bool> has_refused{false};

// Whether an operation fails. `kind` is one of create, open, read, write, sync, rename, remove,
// truncate, lock.
static bool refuses(const char* kind, const std::string& path) {
  if (!refusing.load()) return false;
  pthread_mutex_lock(&refusal);
  bool fails = *refused_kind == kind && path.find(*refused_path) != std::string::npos;
  if (fails) {
    long nth = ++refusable;
    fails = nth >= refused_from && (refused_count == 0 || nth < refused_from + refused_count);
  }
  if (fails) has_refused = true;
  int with = refused_with;
  pthread_mutex_unlock(&refusal);
  if (fails) errno = with;
  return fails;
}

// `<kind>/<errno>/<from>/<count>/<part of the path>`
static void refuse(const char* command) {
  pthread_mutex_lock(&refusal);
  std::string words[4];
  for (std::string& word : words) {
    const char* end = strchr(command, '/');
    word.assign(command, end - command);
    command = end + 1;
  }
  delete refused_kind;
  delete refused_path;
  refused_kind = new std::string(words[0]);
  refused_path = new std::string(command);
  refused_with = atoi(words[1].c_str());
  refused_from = atol(words[2].c_str());
  refused_count = atol(words[3].c_str());
  refusable = 0;
  has_refused = false;
  refusing = true;
  pthread_mutex_unlock(&refusal);
}

// ── Changes to files ─────────────────────────────────────────────────────────────────────────────

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long kill_at = 0;  // the number of the change before which the process is killed; 0 for none
static long changes = 0;
static int log_fd = -1;
static std::string* folder = nullptr;

struct Locked {
  Locked() { pthread_mutex_lock(&lock); }
  ~Locked() { pthread_mutex_unlock(&lock); }
};

__attribute__((constructor)) static void begin() {
  const char* path = getenv("FAULTS_FOLDER");
  if (path == nullptr) return;
  folder = new std::string(path);
  if (const char* number = getenv("FAULTS_KILL_AT")) kill_at = atol(number);
  if (const char* log = getenv("FAULTS_LOG")) {
    log_fd = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  }
}

static bool is_inside(const std::string& path) {
  return folder != nullptr && path.compare(0, folder->size(), *folder) == 0 &&
         (path.size() == folder->size() || path[folder->size()] == '/');
}

static std::string path_of(int fd) {
  char path[4096];
  std::string link = "/proc/self/fd/" + std::to_string(fd);
  ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link.c_str(), path, sizeof path);
  return length < 0 ? std::string() : std::string(path, length);
}

static std::string absolute(int at, const char* path) {
  if (path[0] == '/') return path;
  if (at != AT_FDCWD) return path_of(at) + "/" + path;
  char current[4096];
  return getcwd(current, sizeof current) == nullptr ? std::string(path) : std::string(current) + "/" + path;
}

// Appends a record to the log: a letter, and texts that are preceded by their length.
static void record(char kind, std::initializer_list<std::string> texts) {
  if (log_fd < 0) return;
  std::string bytes(1, kind);
  for (const std::string& text : texts) {
    uint32_t length = text.size();
    bytes.append(reinterpret_cast<const char*>(&length), 4).append(text);
  }
  if (syscall(SYS_write, log_fd, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) abort();
}

static bool is_due() { return ++changes == kill_at; }
static void die() { syscall(SYS_kill, getpid(), SIGKILL); }

// ── Control ──────────────────────────────────────────────────────────────────────────────────────

static const char CONTROL[] = "/trainer-faults/";

// `fail/<n>` lets the nth large allocation from now on fail, `refuse/…` operations on files; `end` ends
// both: the error is then EEXIST if something has failed, and otherwise ENOENT. `mark/<text>` is
// recorded.
static bool control(const char* path) {
  if (strncmp(path, CONTROL, sizeof CONTROL - 1) != 0) return false;
  const char* command = path + sizeof CONTROL - 1;
  errno = ENOENT;
  if (strncmp(command, "fail/", 5) == 0) {
    seen = 0;
    fail_at = atol(command + 5);
  } else if (strcmp(command, "end") == 0) {
    long number = fail_at.exchange(0);
    refusing = false;
    bool has_failed = (number > 0 && number <= seen.load()) || has_refused.exchange(false);
    errno = has_failed ? EEXIST : ENOENT;
  } else if (strncmp(command, "refuse/", 7) == 0) {
    refuse(command + 7);
    errno = ENOENT;
  } else if (strncmp(command, "mark/", 5) == 0) {
    Locked locked;
    record('X', {command + 5});
    errno = ENOENT;
  }
  return true;
}

// ── The functions that change files ──────────────────────────────────────────────────────────────

static int opened(int at, const char* path, int flags, mode_t mode) {
  if (control(path)) return -1;
  std::string whole = absolute(at, path);
  if (refuses((flags & O_CREAT) != 0 ? "create" : "open", whole)) return -1;
  if ((flags & (O_CREAT | O_TRUNC)) == 0 || !is_inside(whole)) return syscall(SYS_openat, at, path, flags, mode);
  Locked locked;
  struct stat before;
  bool existed = lstat(whole.c_str(), &before) == 0;
  if ((!existed || (flags & O_TRUNC) != 0) && is_due()) die();
  int fd = syscall(SYS_openat, at, path, flags, mode);
  if (fd >= 0 && !existed) record('C', {whole});
  if (fd >= 0 && existed && (flags & O_TRUNC) != 0) record('T', {whole, "0"});
  return fd;
}

static mode_t mode_of(int flags, va_list rest) { return (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0; }

#define OPEN(name)                                 \
  EXPORT int name(const char* path, int flags, ...) { \
    va_list rest;                                  \
    va_start(rest, flags);                         \
    mode_t mode = mode_of(flags, rest);            \
    va_end(rest);                                  \
    return opened(AT_FDCWD, path, flags, mode);    \
  }
#define OPENAT(name)                                       \
  EXPORT int name(int at, const char* path, int flags, ...) { \
    va_list rest;                                          \
    va_start(rest, flags);                                 \
    mode_t mode = mode_of(flags, rest);                    \
    va_end(rest);                                          \
    return opened(at, path, flags, mode);                  \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

// Writes at an offset, or at the position of the file if the offset is -1.
static ssize_t written(int fd, const void* bytes, size_t count, off_t offset) {
  if (refusing.load() && refuses("write", path_of(fd))) {
    // As on a full disk, half of the bytes are written; the error comes with the next call.
    int with = errno;
    if (count > 1) {
      offset < 0 ? syscall(SYS_write, fd, bytes, count / 2) : syscall(SYS_pwrite64, fd, bytes, count / 2, offset);
    }
    errno = with;
    return -1;
  }
  if (folder == nullptr) {
    return offset < 0 ? syscall(SYS_write, fd, bytes, count) : syscall(SYS_pwrite64, fd, bytes, count, offset);
  }
  std::string path = path_of(fd);
  bool inside = is_inside(path);
  Locked locked;
  bool dies = inside && is_due();
  if (dies) count /= 2;
  ssize_t done =
      offset < 0 ? syscall(SYS_write, fd, bytes, count) : syscall(SYS_pwrite64, fd, bytes, count, offset);
  if (dies) die();
  if (inside && done > 0) {
    if (offset < 0) offset = syscall(SYS_lseek, fd, 0, SEEK_CUR) - done;
    record('W', {path, std::to_string(offset), std::string(static_cast<const char*>(bytes), done)});
  }
  return done;
}

EXPORT ssize_t write(int fd, const void* bytes, size_t count) { return written(fd, bytes, count, -1); }
EXPORT ssize_t pwrite(int fd, const void* bytes, size_t count, off_t at) { return written(fd, bytes, count, at); }
EXPORT ssize_t pwrite64(int fd, const void* bytes, size_t count, off_t at) { return written(fd, bytes, count, at); }

EXPORT ssize_t writev(int fd, const struct iovec* parts, int count) {
  ssize_t total = 0;
  for (int nth = 0; nth < count; nth++) {
    ssize_t done = written(fd, parts[nth].iov_base, parts[nth].iov_len, -1);
    if (done < 0) return total > 0 ? total : done;
    total += done;
    if (static_cast<size_t>(done) < parts[nth].iov_len) break;
  }
  return total;
}

EXPORT ssize_t read(int fd, void* to, size_t count) {
  if (refusing.load() && refuses("read", path_of(fd))) return -1;
  return syscall(SYS_read, fd, to, count);
}
EXPORT ssize_t pread(int fd, void* to, size_t count, off_t at) {
  if (refusing.load() && refuses("read", path_of(fd))) return -1;
  return syscall(SYS_pread64, fd, to, count, at);
}
EXPORT ssize_t pread64(int fd, void* to, size_t count, off_t at) { return pread(fd, to, count, at); }

EXPORT int flock(int fd, int operation) {
  if (refusing.load() && refuses("lock", path_of(fd))) return -1;
  return syscall(SYS_flock, fd, operation);
}

// Rust then reads and writes instead.
EXPORT ssize_t copy_file_range(int, off64_t*, int, off64_t*, size_t, unsigned) {
  errno = ENOSYS;
  return -1;
}
EXPORT ssize_t sendfile64(int, int, off64_t*, size_t) {
  errno = ENOSYS;
  return -1;
}

static int synced(int fd, long number) {
  if (refusing.load() && refuses("sync", path_of(fd))) return -1;
  std::string path = folder == nullptr ? std::string() : path_of(fd);
  Locked locked;
  if (is_inside(path) && is_due()) die();
  int result = syscall(number, fd);
  if (result == 0 && is_inside(path)) record('S', {path});
  return result;
}

EXPORT int fsync(int fd) { return synced(fd, SYS_fsync); }
EXPORT int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

static int truncated(int fd, off_t length) {
  std::string path = path_of(fd);
  if (refuses("truncate", path)) return -1;
  Locked locked;
  if (is_inside(path) && is_due()) die();
  int result = syscall(SYS_ftruncate, fd, length);
  if (result == 0 && is_inside(path)) record('T', {path, std::to_string(length)});
  return result;
}

EXPORT int ftruncate(int fd, off_t length) { return truncated(fd, length); }
EXPORT int ftruncate64(int fd, off_t length) { return truncated(fd, length); }

static int renamed(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  std::string old = absolute(from_at, from), now = absolute(to_at, to);
  if (refuses("rename", now)) return -1;
  Locked locked;
  if (is_inside(old) && is_due()) die();
  int result = syscall(SYS_renameat2, from_at, from, to_at, to, flags);
  if (result == 0 && is_inside(old)) record('R', {old, now});
  return result;
}

EXPORT int rename(const char* from, const char* to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }
EXPORT int renameat(int from_at, const char* from, int to_at, const char* to) {
  return renamed(from_at, from, to_at, to, 0);
}
EXPORT int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) {
  return renamed(from_at, from, to_at, to, flags);
}

EXPORT int linkat(int from_at, const char* from, int to_at, const char* to, int flags) {
  std::string old = absolute(from_at, from), now = absolute(to_at, to);
  Locked locked;
  if (is_inside(now) && is_due()) die();
  int result = syscall(SYS_linkat, from_at, from, to_at, to, flags);
  if (result == 0 && is_inside(now)) record('L', {old, now});
  return result;
}
EXPORT int link(const char* from, const char* to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

EXPORT int unlinkat(int at, const char* path, int flags) {
  std::string whole = absolute(at, path);
  if (refuses("remove", whole)) return -1;
  Locked locked;
  if (is_inside(whole) && is_due()) die();
  int result = syscall(SYS_unlinkat, at, path, flags);
  if (result == 0 && is_inside(whole)) record('U', {whole});
  return result;
}
EXPORT int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }
EXPORT int rmdir(const char* path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

EXPORT int mkdirat(int at, const char* path, mode_t mode) {
  std::string whole = absolute(at, path);
  Locked locked;
  if (is_inside(whole) && is_due()) die();
  int result = syscall(SYS_mkdirat, at, path, mode);
  if (result == 0 && is_inside(whole)) record('M', {whole});
  return result;
}
EXPORT int mkdir(const char* path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
