/* Symbolic memory: buffers that hold descriptions of bytes, not bytes. */
#ifndef TIDE_PLAN_VERIFY_MEMORY_H
#define TIDE_PLAN_VERIFY_MEMORY_H

#include "plan/verify.h"

typedef enum tdi_kind {
    TDI_BAD,   /* no value that an output may have; `reason` says why */
    TDI_ZERO,  /* zeros, whatever the type */
    TDI_SHARD, /* bytes of a rank's packed shard */
    TDI_SUM,   /* sums of one gradient element over some ranks */
} tdi_kind;

typedef enum tdi_reason {
    TDI_UNWRITTEN,   /* nobody has written them */
    TDI_UNALIGNED,   /* parts of elements, or elements of another type */
    TDI_FOREIGN,     /* sums elements that do not belong together */
    TDI_TWICE,       /* counts a rank twice */
    TDI_SCALES,      /* scales twice, or adds scaled and unscaled sums */
    TDI_ROUNDS,      /* sums what was rounded to bf16 on the way */
    TDI_NOT_NUMBERS, /* sums bytes of a shard */
} tdi_reason;

/* What a run of bytes holds; element after element, where there are some. */
typedef struct tdi_content {
    uint8_t kind;
    uint8_t size;    /* bytes of an element of `at`: SHARD 1, SUM 2 or 4 */
    bool scaled;     /* SUM */
    bool rounded;    /* SUM: to bf16, after an addition */
    uint32_t reason; /* BAD */
    uint32_t who; /* SHARD: the rank. SUM: the parameter. BAD: the rank ... */
    uint32_t set; /* SUM: number of the set of ranks. BAD: ... and its op */
    uint64_t at;  /* SHARD: byte of the shard. SUM: element. */
} tdi_content;

/* In `who` of BAD: no op is known to be at fault. */
#define TDI_NOBODY UINT32_MAX

typedef struct tdi_extent {
    uint64_t from;
    uint64_t to;
    tdi_content content;
} tdi_extent;

/* One buffer: extents in order, disjoint; the gaps are TDI_UNWRITTEN. */
typedef struct tdi_image {
    tdi_extent *extents;
    size_t count;
    size_t capacity;
} tdi_image;

/* What is at byte `from`, and up to where (at most `to`) it goes on. */
tdi_content tdi_image_get(const tdi_image *image, uint64_t from, uint64_t to,
                          uint64_t *end);
/* Overwrites [from, to). False when memory is out. */
bool tdi_image_set(tdi_image *image, uint64_t from, uint64_t to,
                   const tdi_content *content);
void tdi_image_free(tdi_image *image);
/* The content that lies `bytes` further on in a run of it. */
tdi_content tdi_content_skip(const tdi_content *content, uint64_t bytes);

/* Sets of ranks, numbered: equal sets have equal numbers. */
typedef struct tdi_rank_sets {
    uint32_t words; /* of 64 ranks */
    uint32_t count;
    uint32_t capacity;
    uint64_t *bits; /* [number][word] */
    uint32_t *buckets;
    uint32_t bucket_count; /* a power of two */
    uint64_t *sum;         /* the set that is being gathered */
} tdi_rank_sets;

bool tdi_sets_open(tdi_rank_sets *sets, uint32_t ranks);
void tdi_sets_close(tdi_rank_sets *sets);
/* Gathers a union: clear, add sets or ranks, take its number. Adding returns
 * false if a rank is there already. Numbers: UINT32_MAX when memory is out. */
void tdi_sets_clear(tdi_rank_sets *sets);
bool tdi_sets_add(tdi_rank_sets *sets, uint32_t number);
bool tdi_sets_add_rank(tdi_rank_sets *sets, uint32_t rank);
uint32_t tdi_sets_number(tdi_rank_sets *sets);
/* A rank below `ranks` that a set lacks, or UINT32_MAX. */
uint32_t tdi_sets_lacks(const tdi_rank_sets *sets, uint32_t number,
                        uint32_t ranks);

/* "the unscaled fp32 sum of element 7 of parameter 0, without rank 3". */
void tdi_content_text(const tdi_content *content, const tdi_rank_sets *sets,
                      uint32_t ranks, char *text, size_t size);

#endif
