/*
 * Runs a fuzz target without libFuzzer: over the cases of corpus files, given
 * bytes, or random bytes from a seed.
 *
 *   fuzz_<target>_replay [--random COUNT] [--seconds S] [--seed S]
 *                        [--hex BYTES] [FILE...]
 *   fuzz_<target>_replay --unpack FOLDER FILE...
 *
 * Random cases end after COUNT of them or S seconds. A corpus file has one case
 * a line, in hexadecimal; # begins a comment. --unpack writes each case to a
 * file of its own, as libFuzzer wants them. A case that fails or takes a minute
 * is printed, to be given to --hex.
 */
#include <ctype.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fuzz.h"
#include "support/check.h"

enum { MAX_BYTES = 512, SECONDS_A_CASE = 60 };

static char current[2 * MAX_BYTES + 2]; /* the case that runs, and a newline */

/* What is fatal anyway also says which case it was. */
static void report_case(int number)
{
    static const char text[] = "replay: fails or hangs; repeat with --hex ";
    ssize_t ignored = write(2, text, sizeof(text) - 1);
    ignored += write(2, current, strlen(current));
    (void)ignored;
    signal(number, SIG_DFL);
    raise(number);
}

static void watch(void)
{
    static const int fatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM};
    for (size_t i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
        signal(fatal[i], report_case);
}

static void run_case(const uint8_t *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        sprintf(current + 2 * i, "%02x", data[i]);
    strcpy(current + 2 * bytes, "\n");
    alarm(SECONDS_A_CASE);
    LLVMFuzzerTestOneInput(data, bytes);
    alarm(0);
}

/* The bytes of a line; blanks do not count, # ends it. */
static size_t parse_hex(const char *text, uint8_t *data)
{
    size_t digits = 0;
    for (; *text && *text != '#'; text++) {
        static const char known[] = "0123456789abcdef";
        if (isspace((unsigned char)*text))
            continue;
        const char *digit = strchr(known, *text);
        if (!digit || digits >= 2 * MAX_BYTES)
            CHECK_FAIL("no case of hexadecimal bytes, at \"%s\"", text);
        uint8_t *byte = &data[digits / 2];
        *byte = (uint8_t)((digits % 2 ? *byte << 4 : 0) | (digit - known));
        digits++;
    }
    if (digits % 2)
        CHECK_FAIL("a case ends in half a byte");
    return digits / 2;
}

static void unpack_case(const char *folder, uint64_t number,
                        const uint8_t *data, size_t bytes)
{
    char name[4096];
    snprintf(name, sizeof(name), "%s/%" PRIu64, folder, number);
    FILE *to = fopen(name, "wb");
    if (!to || fwrite(data, 1, bytes, to) != bytes || fclose(to))
        CHECK_FAIL("cannot write %s", name);
}

/* Runs the cases of a file, or writes them to a folder; returns how many. */
static uint64_t replay_file(const char *name, const char *folder)
{
    FILE *from = fopen(name, "r");
    char line[4 * MAX_BYTES];
    uint8_t data[MAX_BYTES];
    uint64_t count = 0;
    if (!from)
        CHECK_FAIL("cannot read %s", name);
    while (fgets(line, sizeof(line), from)) {
        if (line[0] == '#' || line[0] == '\n')
            continue;
        size_t bytes = parse_hex(line, data);
        if (folder)
            unpack_case(folder, count, data, bytes);
        else
            run_case(data, bytes);
        count++;
    }
    fclose(from);
    return count;
}

typedef struct replay_args {
    uint64_t random;  /* cases */
    uint64_t seconds; /* 0: no limit */
    uint64_t seed;
    const char *hex;
    const char *folder;
    int first_file;
} replay_args;

/* Case i of a seed is the same everywhere. Returns how many have run. */
static uint64_t run_random(const replay_args *args)
{
    uint8_t data[64];
    uint64_t i = 0;
    time_t end = time(NULL) + (time_t)args->seconds;
    for (; i < args->random; i++) {
        if (args->seconds && time(NULL) >= end)
            break;
        uint64_t random = (args->seed + i) * 0x9e3779b97f4a7c15u | 1;
        size_t bytes = check_between(&random, 0, sizeof(data));
        for (size_t b = 0; b < bytes; b++)
            data[b] = (uint8_t)(check_random(&random) >> 32);
        run_case(data, bytes);
    }
    return i;
}

static void print_usage(const char *program)
{
    fprintf(stderr,
            "usage: %s [--random COUNT] [--seconds S] [--seed S] "
            "[--hex BYTES] [--unpack FOLDER] [FILE...]\n",
            program);
    exit(2);
}

static replay_args parse_args(int count, char **words)
{
    replay_args args = {.seed = 1};
    int i = 1;
    for (; i < count && !strncmp(words[i], "--", 2); i += 2) {
        const char *value = words[i + 1]; /* NULL behind the last word */
        if (!value)
            print_usage(words[0]);
        if (!strcmp(words[i], "--random"))
            args.random = strtoull(value, NULL, 10);
        else if (!strcmp(words[i], "--seconds"))
            args.seconds = strtoull(value, NULL, 10);
        else if (!strcmp(words[i], "--seed"))
            args.seed = strtoull(value, NULL, 10);
        else if (!strcmp(words[i], "--hex"))
            args.hex = value;
        else if (!strcmp(words[i], "--unpack"))
            args.folder = value;
        else
            print_usage(words[0]);
    }
    args.first_file = i;
    if (args.seconds && !args.random)
        args.random = UINT64_MAX;
    return args;
}

int main(int count, char **words)
{
    replay_args args = parse_args(count, words);
    uint64_t cases = 0;
    if (count == 1)
        print_usage(words[0]);
    watch();
    for (int i = args.first_file; i < count; i++)
        cases += replay_file(words[i], args.folder);
    if (args.hex) {
        uint8_t data[MAX_BYTES];
        run_case(data, parse_hex(args.hex, data));
        cases++;
    }
    uint64_t random = run_random(&args);
    printf("%" PRIu64 " cases and %" PRIu64 " random ones: ok\n", cases,
           random);
    return 0;
}
