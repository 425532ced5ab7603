/* Reads a parameter group from a file, one parameter a line. */
#include "common/group_file.h"

#include "base/fail.h"
#include "base/util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIMS 8
#define BLANKS   " \t\r\n"

uint64_t tdi_scale_dim(uint64_t dim, double scale)
{
    return dim ? tdi_max(1, (uint64_t)((double)dim / scale)) : 0;
}

/* Digits only: strtoull would take signs and blanks too. */
static bool parse_number(const char *text, char **end, uint64_t *number)
{
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *number = strtoull(text, end, 10);
    return !errno;
}

/* "4096x14336" to dims; 0 if it is no shape. */
static size_t parse_shape(char *text, uint64_t *dims)
{
    size_t count = 0;
    for (char *end;; text = end + 1) {
        if (count == MAX_DIMS || !parse_number(text, &end, &dims[count++]))
            return 0;
        if (!*end)
            return count;
        if (*end != 'x')
            return 0;
    }
}

static bool parse_dtype(const char *text, tide_dtype *dtype)
{
    for (int i = 0; i < TIDE_DTYPE_COUNT; i++)
        if (!strcmp(text, tide_dtype_name((tide_dtype)i))) {
            *dtype = (tide_dtype)i;
            return true;
        }
    return false;
}

/* The reason why the line's words are no parameter; NULL if they are one. */
static const char *parse_param(char *words[3], double scale, tide_param *param)
{
    uint64_t dims[MAX_DIMS], sharded = 0;
    size_t count = parse_shape(words[0], dims);
    char *end;
    *param = (tide_param){1, 0, 1, TIDE_BF16};
    if (!count)
        return "the shape is not like 4096x14336";
    if (words[1] && !parse_dtype(words[1], &param->dtype))
        return "there is no such dtype";
    if (words[2] &&
        (!parse_number(words[2], &end, &sharded) || *end || sharded >= count))
        return "the sharded dimension is none of the shape's";
    dims[0] = tdi_scale_dim(dims[0], scale);
    param->rows = dims[sharded];
    for (size_t d = 0; d < count; d++) {
        uint64_t *factor = d < sharded ? &param->outer : &param->inner;
        if (d != sharded && !tdi_mul(*factor, dims[d], factor))
            return "the shape is too large";
    }
    return NULL;
}

static tide_status append(tdi_params *list, const tide_param *param)
{
    if ((list->count & (list->count - 1)) == 0) {
        size_t room = list->count ? 2 * list->count : 1;
        tide_param *grown = realloc(list->params, room * sizeof(*grown));
        if (!grown)
            return tdi_fail(TIDE_ERR_MEMORY, "no memory for %zu parameters",
                            room);
        list->params = grown;
    }
    list->params[list->count++] = *param;
    return TIDE_OK;
}

static tide_status read_line(const char *path, size_t number, char *line,
                             double scale, tdi_params *list)
{
    char *words[4] = {0}, *rest;
    tide_param param;
    line[strcspn(line, "#")] = 0;
    words[0] = strtok_r(line, BLANKS, &rest);
    if (!words[0])
        return TIDE_OK;
    for (int i = 1; i < 4 && words[i - 1]; i++)
        words[i] = strtok_r(NULL, BLANKS, &rest);
    const char *fault = words[3] ? "more than SHAPE DTYPE DIM"
                                 : parse_param(words, scale, &param);
    if (fault)
        return tdi_fail(TIDE_ERR_INVALID, "%s:%zu: %s", path, number, fault);
    return append(list, &param);
}

tide_status tdi_group_file_load(const char *path, double scale,
                                tdi_params *list)
{
    char *line = NULL;
    size_t room = 0, number = 0;
    tide_status status = TIDE_OK;
    FILE *file = fopen(path, "r");
    *list = (tdi_params){0};
    if (!file)
        return tdi_fail(TIDE_ERR_INVALID,
                        "%s is no built-in group (--list-groups) and no file "
                        "that can be read: %s",
                        path, strerror(errno));
    while (!status && getline(&line, &room, file) >= 0)
        status = read_line(path, ++number, line, scale, list);
    if (!status && ferror(file))
        status = tdi_fail(TIDE_ERR_INVALID, "%s cannot be read: %s", path,
                          strerror(errno));
    free(line);
    fclose(file);
    if (status)
        tdi_params_free(list);
    return status;
}
