/*
 * Memory of the fake: blocks of host memory, and the device address ranges
 * that show them. Addresses are never given out twice, so that use after free
 * is seen, and lie where no host address can.
 */
#include "fake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BASE         0x8a0000000000u
#define GAP          (2ull << 20)
#define POISON_BYTES (16ull << 20)

enum { POISON = 0xfb };

struct fake_block {
    char *host;
    uint64_t bytes;
    bool is_foreign; /* the caller's memory: not ours to unmap */
    int file;        /* that peers in other processes map; -1: none */
    atomic_uint references;
};

typedef enum kind { ALLOCATED, HOST, REGISTERED, MAPPED, FREED } kind;

typedef struct range {
    uint64_t start;
    uint64_t bytes;
    kind kind;
    int device;
    atomic_int pins;
    uint32_t members;
    fake_block **blocks;
    uint64_t *offsets;
} range;

/* Sorted: device addresses only grow. Host ranges stand in a list of their
 * own, and leave it; a device range that is gone stays, for the messages. */
static struct {
    pthread_rwlock_t lock;
    range **device;
    range **host;
    size_t device_count;
    size_t host_count;
    uint64_t next;
} all = {.lock = PTHREAD_RWLOCK_INITIALIZER, .next = BASE};

/* --- Blocks --------------------------------------------------------------- */

static int poison_file;
static pthread_once_t poison_once = PTHREAD_ONCE_INIT;

static void make_poison(void)
{
    poison_file = memfd_create("fake-poison", MFD_CLOEXEC);
    if (poison_file < 0 || ftruncate(poison_file, POISON_BYTES))
        fake_fail("no memory for poison");
    char *at = mmap(NULL, POISON_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                    poison_file, 0);
    if (at == MAP_FAILED)
        fake_fail("no memory for poison");
    memset(at, POISON, POISON_BYTES);
    munmap(at, POISON_BYTES);
}

static fake_block *map_file(int file, uint64_t size)
{
    fake_block *block = calloc(1, sizeof(*block));
    block->host = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (block->host == MAP_FAILED)
        fake_fail("no memory for %llu bytes", (unsigned long long)size);
    block->bytes = size;
    block->file = file;
    block->references = 1;
    return block;
}

static fake_block *make_file_block(uint64_t size)
{
    int file = memfd_create("fake-memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, (off_t)size))
        fake_fail("no file for %llu bytes", (unsigned long long)size);
    fake_block *block = map_file(file, size);
    memset(block->host, POISON, size);
    return block;
}

int fake_block_file(const fake_block *block, uint64_t *bytes)
{
    *bytes = block->bytes;
    return block->file;
}

fake_block *fake_block_open(int pid, int file, uint64_t bytes)
{
    return map_file(fake_open_file(pid, file), bytes);
}

/* Poisoned by private maps of one poisoned file, so that the pages of a large
 * arena that nobody touches cost nothing. */
static fake_block *make_block(uint64_t bytes)
{
    fake_block *block = calloc(1, sizeof(*block));
    uint64_t size = (bytes + 4095) & ~4095ull;
    if (fake_has_processes()) {
        free(block);
        return make_file_block(size);
    }
    pthread_once(&poison_once, make_poison);
    if (!block)
        return NULL;
    block->file = -1;
    block->host = mmap(NULL, size, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (uint64_t at = 0; block->host != MAP_FAILED && at < size;) {
        uint64_t part = size - at < POISON_BYTES ? size - at : POISON_BYTES;
        if (mmap(block->host + at, part, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poison_file,
                 0) == MAP_FAILED) {
            munmap(block->host, size);
            block->host = MAP_FAILED;
        }
        at += part;
    }
    if (block->host == MAP_FAILED) {
        free(block);
        return NULL;
    }
    block->bytes = size;
    block->references = 1;
    return block;
}

fake_block *fake_block_hold(fake_block *block)
{
    block->references++;
    return block;
}

void fake_block_drop(fake_block *block)
{
    if (!block || atomic_fetch_sub(&block->references, 1) > 1)
        return;
    if (!block->is_foreign)
        munmap(block->host, block->bytes);
    if (block->file >= 0)
        close(block->file);
    free(block);
}

char *fake_block_at(fake_block *block, uint64_t offset)
{
    return block->host + offset;
}

/* --- Ranges --------------------------------------------------------------- */

static range *make_range(kind what, int device, uint32_t members)
{
    range *made = calloc(1, sizeof(*made));
    made->kind = what;
    made->device = device;
    made->members = members;
    made->blocks = calloc(members, sizeof(*made->blocks));
    made->offsets = calloc(members, sizeof(*made->offsets));
    return made;
}

static void append(range ***list, size_t *count, range *one)
{
    *list = realloc(*list, (*count + 1) * sizeof(**list));
    (*list)[(*count)++] = one;
}

/* Gives the range addresses, `align` bytes into a page where that is less. */
static uint64_t place(range *one, uint64_t bytes, uint64_t align)
{
    uint64_t shift = align < 4096 ? align : 0;
    pthread_rwlock_wrlock(&all.lock);
    one->start = all.next + shift;
    one->bytes = bytes;
    all.next += ((bytes + shift + GAP - 1) & ~(GAP - 1)) + GAP;
    append(&all.device, &all.device_count, one);
    pthread_rwlock_unlock(&all.lock);
    return one->start;
}

/* The device range that begins at or before the address; lock held. */
static range *find_device(uint64_t address)
{
    size_t low = 0, high = all.device_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (all.device[middle]->start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? all.device[low - 1] : NULL;
}

static range *find_host(uint64_t address)
{
    for (size_t i = 0; i < all.host_count; i++) {
        range *one = all.host[i];
        if (address - one->start < one->bytes)
            return one;
    }
    return NULL;
}

static range *find(uint64_t address)
{
    return address >= BASE ? find_device(address) : find_host(address);
}

static bool holds(const range *one, uint64_t address, uint64_t bytes)
{
    return one && one->kind != FREED && address >= one->start &&
           bytes <= one->bytes && address - one->start <= one->bytes - bytes;
}

static void drop_range(range *one)
{
    one->kind = FREED;
    for (uint32_t m = 0; m < one->members; m++)
        fake_block_drop(one->blocks[m]);
    free(one->blocks);
    free(one->offsets);
    one->blocks = NULL;
    one->offsets = NULL;
}

/* Lock held. */
static void forget_host(range *one)
{
    for (size_t i = 0; i < all.host_count; i++)
        if (all.host[i] == one)
            all.host[i] = all.host[--all.host_count];
    free(one);
}

/* Ends a range that must begin there and be of that kind. */
static void end_range(uint64_t address, kind what, const char *call)
{
    pthread_rwlock_wrlock(&all.lock);
    range *one = find(address);
    if (!one || one->start != address || one->kind != what)
        fake_fail("%s of %#llx, which is %s", call, (unsigned long long)address,
                  one && one->kind == FREED && one->start == address
                      ? "gone already"
                      : "no allocation");
    if (one->pins)
        fake_fail("%s of %#llx, %llu bytes of device %d, while work uses it",
                  call, (unsigned long long)address,
                  (unsigned long long)one->bytes, one->device);
    drop_range(one);
    if (address < BASE)
        forget_host(one);
    pthread_rwlock_unlock(&all.lock);
}

uint64_t fake_alloc(int device, uint64_t bytes, uint64_t align)
{
    fake_block *block = make_block(bytes);
    if (!block)
        return 0;
    range *made = make_range(ALLOCATED, device, 1);
    made->blocks[0] = block;
    return place(made, bytes, align);
}

void fake_free(uint64_t address, const char *call)
{
    end_range(address, ALLOCATED, call);
}

static void add_host(kind what, fake_block *block, uint64_t bytes)
{
    range *made = make_range(what, -1, 1);
    made->blocks[0] = block;
    made->bytes = bytes;
    made->start = (uint64_t)(uintptr_t)block->host;
    pthread_rwlock_wrlock(&all.lock);
    append(&all.host, &all.host_count, made);
    pthread_rwlock_unlock(&all.lock);
}

void *fake_host_alloc(uint64_t bytes)
{
    fake_block *block = make_block(bytes);
    if (block)
        add_host(HOST, block, bytes);
    return block ? block->host : NULL;
}

void fake_host_free(void *memory)
{
    end_range((uint64_t)(uintptr_t)memory, HOST, "cuMemFreeHost");
}

bool fake_host_register(void *memory, uint64_t bytes)
{
    uint64_t start = (uint64_t)(uintptr_t)memory;
    pthread_rwlock_rdlock(&all.lock);
    bool known = find_host(start) || find_host(start + bytes - 1);
    pthread_rwlock_unlock(&all.lock);
    if (known)
        return false;
    fake_block *block = calloc(1, sizeof(*block));
    block->host = memory;
    block->bytes = bytes;
    block->is_foreign = true;
    block->file = -1;
    block->references = 1;
    add_host(REGISTERED, block, bytes);
    return true;
}

void fake_host_unregister(void *memory)
{
    end_range((uint64_t)(uintptr_t)memory, REGISTERED, "cuMemHostUnregister");
}

bool fake_is_host(uint64_t address)
{
    pthread_rwlock_rdlock(&all.lock);
    bool known = address >= BASE || find_host(address);
    pthread_rwlock_unlock(&all.lock);
    return !known;
}

fake_block *fake_block_of(uint64_t address, uint64_t bytes, uint64_t *offset)
{
    fake_block *block = NULL;
    pthread_rwlock_rdlock(&all.lock);
    range *one = find(address);
    if (holds(one, address, bytes) && one->kind == ALLOCATED) {
        block = one->blocks[0];
        *offset = address - one->start;
        block->references++;
    }
    pthread_rwlock_unlock(&all.lock);
    return block;
}

uint64_t fake_map(int device, fake_block *const *blocks,
                  const uint64_t *offsets, uint32_t members, uint64_t bytes)
{
    range *made = make_range(MAPPED, device, members);
    for (uint32_t m = 0; m < members; m++) {
        made->blocks[m] = blocks[m];
        made->offsets[m] = offsets[m];
        blocks[m]->references++;
    }
    return place(made, bytes, 4096);
}

void fake_unmap(uint64_t address)
{
    end_range(address, MAPPED, "the end of a window");
}

/* --- Access --------------------------------------------------------------- */

static void refuse(const range *one, uint64_t address, uint64_t bytes,
                   const char *what)
{
    if (one && one->kind == FREED && address - one->start < one->bytes)
        fake_fail("%s touches %#llx, which was freed", what,
                  (unsigned long long)address);
    if (one && address - one->start < one->bytes)
        fake_fail("%s touches %llu bytes at %#llx, where %llu of %llu are left",
                  what, (unsigned long long)bytes, (unsigned long long)address,
                  (unsigned long long)(one->start + one->bytes - address),
                  (unsigned long long)one->bytes);
    fake_fail("%s touches %#llx, which is no memory", what,
              (unsigned long long)address);
}

static void check_access(const range *one, int device, uint64_t address,
                         int access, const char *what)
{
    if (one->device >= 0 && one->device != device)
        fake_fail("%s of device %d touches %#llx of device %d", what, device,
                  (unsigned long long)address, one->device);
    if ((one->members > 1) != ((access & FAKE_SWITCH) != 0) &&
        (access & (FAKE_READ | FAKE_SWITCH)))
        fake_fail(one->members > 1 ? "%s reads the multicast address %#llx"
                                   : "%s has the switch add at %#llx, which is "
                                     "no multicast address",
                  what, (unsigned long long)address);
}

fake_view fake_pin(int device, uint64_t address, uint64_t bytes, int access,
                   const char *what)
{
    fake_view view = {.members = 1};
    pthread_rwlock_rdlock(&all.lock);
    range *one = find(address);
    if (!one && address < BASE) { /* pageable: its owner knows the bounds */
        if (!address)
            fake_fail("%s touches address 0", what);
        view.at[0] = (char *)(uintptr_t)address;
    } else {
        if (!holds(one, address, bytes))
            refuse(one, address, bytes, what);
        check_access(one, device, address, access, what);
        view.start = one->start;
        view.offset = address - one->start;
        view.is_host = address < BASE;
        view.members = one->members;
        for (uint32_t m = 0; m < one->members; m++)
            view.at[m] =
                one->blocks[m]->host + one->offsets[m] + (address - one->start);
        one->pins++;
    }
    pthread_rwlock_unlock(&all.lock);
    return view;
}

void fake_unpin(const fake_view *view)
{
    if (!view->start)
        return;
    pthread_rwlock_rdlock(&all.lock);
    find(view->start)->pins--;
    pthread_rwlock_unlock(&all.lock);
}
