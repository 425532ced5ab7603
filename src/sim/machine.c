/* Machines: the built-in ones, and those in files. */
#include "base/fail.h"
#include "base/util.h"
#include "sim/embed.h"
#include "sim/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tide/sim.h>

/* symbol, name: machines/<name>.json */
#define MACHINES(X)                                                            \
    X(tdi_machine_b200, "b200-8x400g")                                         \
    X(tdi_machine_h200, "h200-8x400g")                                         \
    X(tdi_machine_gb200, "gb200-nvl72")                                        \
    X(tdi_machine_laptop, "laptop-host")

#define X(symbol, name) TDI_EMBED(symbol, "../machines/" name ".json");
MACHINES(X)
#undef X

static const struct {
    const char *name;
    const char *text;
} builtins[] = {
#define X(symbol, name) {name, symbol},
    MACHINES(X)
#undef X
};

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
#define X(field, unit, text) {#field, offsetof(tide_machine, field)},
    TIDE_MACHINE_LIST(X)
#undef X
};

const char *tide_machine_name(size_t i)
{
    return i < TDI_COUNT(builtins) ? builtins[i].name : NULL;
}

typedef struct loader {
    const char *from;
    tide_machine *machine;
    bool seen[TDI_COUNT(fields)];
} loader;

static tide_status set_text(loader *l, const tdi_member *member)
{
    bool name = !strcmp(member->key, "name");
    char *to = name ? l->machine->name : l->machine->about;
    size_t size = name ? sizeof(l->machine->name) : sizeof(l->machine->about);
    if (!name && strcmp(member->key, "about"))
        return tdi_fail(TIDE_ERR_INVALID,
                        "%s: \"%s\" is not a text of a "
                        "machine",
                        l->from, member->key);
    if (*to || !*member->text || strlen(member->text) >= size)
        return tdi_fail(TIDE_ERR_INVALID,
                        "%s: \"%s\" is there twice, empty, or longer than %zu "
                        "characters",
                        l->from, member->key, size - 1);
    strcpy(to, member->text);
    return TIDE_OK;
}

static tide_status set_member(void *context, const tdi_member *member)
{
    loader *l = context;
    if (member->text)
        return set_text(l, member);
    for (size_t i = 0; i < TDI_COUNT(fields); i++) {
        if (strcmp(member->key, fields[i].name))
            continue;
        if (l->seen[i] || member->number < 0)
            return tdi_fail(TIDE_ERR_INVALID,
                            "%s: \"%s\" is there twice or negative", l->from,
                            member->key);
        l->seen[i] = true;
        memcpy((char *)l->machine + fields[i].offset, &member->number,
               sizeof(double));
        return TIDE_OK;
    }
    return tdi_fail(TIDE_ERR_INVALID,
                    "%s: \"%s\" is not a number of a "
                    "machine",
                    l->from, member->key);
}

static tide_status parse(const char *from, const char *text,
                         tide_machine *machine)
{
    loader l = {.from = from, .machine = machine};
    *machine = (tide_machine){0};
    TDI_TRY(tdi_json_read(from, text, set_member, &l));
    if (!*machine->name || !*machine->about)
        return tdi_fail(TIDE_ERR_INVALID,
                        "%s: \"name\" or \"about\" is "
                        "missing",
                        from);
    for (size_t i = 0; i < TDI_COUNT(fields); i++)
        if (!l.seen[i])
            return tdi_fail(TIDE_ERR_INVALID, "%s: \"%s\" is missing", from,
                            fields[i].name);
    if (machine->local_size < 1 || machine->local_size > TIDE_MAX_LOCAL)
        return tdi_fail(TIDE_ERR_INVALID,
                        "%s: local_size %g is not within "
                        "1..%u",
                        from, machine->local_size, TIDE_MAX_LOCAL);
    return TIDE_OK;
}

static tide_status load_file(const char *path, tide_machine *machine)
{
    char text[16384];
    FILE *file = fopen(path, "r");
    if (!file)
        return tdi_fail(TIDE_ERR_INVALID,
                        "\"%s\" is neither a built-in "
                        "machine nor a file that can be read",
                        path);
    size_t length = fread(text, 1, sizeof(text), file);
    bool failed = ferror(file);
    fclose(file);
    if (failed || length == sizeof(text))
        return tdi_fail(TIDE_ERR_INVALID,
                        "%s cannot be read or has more than "
                        "%zu bytes",
                        path, sizeof(text) - 1);
    text[length] = '\0';
    if (strlen(text) != length)
        return tdi_fail(TIDE_ERR_INVALID, "%s is not text", path);
    return parse(path, text, machine);
}

tide_status tide_machine_load(const char *name, tide_machine *machine)
{
    if (!name || !machine)
        return tdi_fail(TIDE_ERR_INVALID, "name or machine is NULL");
    for (size_t i = 0; i < TDI_COUNT(builtins); i++)
        if (!strcmp(name, builtins[i].name))
            return parse(name, builtins[i].text, machine);
    return load_file(name, machine);
}
