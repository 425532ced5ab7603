/* Python values to tide's: numbers, dtypes, phases, addresses. */
#include "ext.h"

#include <string.h>

int ext_to_u64(PyObject *object, void *out)
{
    unsigned long long value = PyLong_AsUnsignedLongLong(object);

    if (value == (unsigned long long)-1 && PyErr_Occurred())
        return 0;
    *(uint64_t *)out = value;
    return 1;
}

int ext_to_u32(PyObject *object, void *out)
{
    uint64_t value;

    if (!ext_to_u64(object, &value))
        return 0;
    if (value > UINT32_MAX) {
        PyErr_SetString(PyExc_OverflowError, "number is past 32 bits");
        return 0;
    }
    *(uint32_t *)out = (uint32_t)value;
    return 1;
}

int ext_to_address(PyObject *object, void *out)
{
    uint64_t value;

    if (!ext_to_u64(object, &value))
        return 0;
    *(void **)out = (void *)(uintptr_t)value;
    return 1;
}

/* The index of a str among `count` names, or -1 with ValueError. */
static int index_of(PyObject *object, const char *(*name)(int), int count,
                    const char *what)
{
    const char *text = PyUnicode_AsUTF8AndSize(object, NULL);

    if (!text)
        return -1;
    for (int i = 0; i < count; i++)
        if (name(i) && !strcmp(name(i), text))
            return i;
    PyErr_Format(PyExc_ValueError, "unknown %s '%s'", what, text);
    return -1;
}

static const char *dtype_name(int dtype)
{
    return tide_dtype_name((tide_dtype)dtype);
}

static const char *coll_name(int coll)
{
    static const char *const names[] = {
        [TIDE_ALL_GATHER] = "all_gather",
        [TIDE_REDUCE_SCATTER] = "reduce_scatter",
    };
    return names[coll];
}

static const char *phase_name(int phase)
{
    static const char *const names[TIDE_PHASE_COUNT] = {
        [TIDE_PHASE_FREE] = "free",
        [TIDE_PHASE_READS] = "reads",
        [TIDE_PHASE_DONE] = "done",
    };
    return names[phase];
}

int ext_to_dtype(PyObject *object, void *out)
{
    int i = index_of(object, dtype_name, TIDE_DTYPE_COUNT, "dtype");

    *(tide_dtype *)out = (tide_dtype)i;
    return i >= 0;
}

int ext_to_coll(PyObject *object, void *out)
{
    int i = index_of(object, coll_name, 2, "collective");

    *(tide_coll *)out = (tide_coll)i;
    return i >= 0;
}

int ext_to_phase(PyObject *object, void *out)
{
    int i = index_of(object, phase_name, TIDE_PHASE_COUNT, "phase");

    *(tide_phase *)out = (tide_phase)i;
    return i >= 0;
}

void **ext_addresses(PyObject *sequence, size_t count)
{
    Py_ssize_t length = PySequence_Size(sequence);
    void **array;

    if (length < 0)
        return NULL;
    if ((size_t)length != count) {
        PyErr_Format(PyExc_ValueError, "%zd addresses for %zu parameters",
                     length, count);
        return NULL;
    }
    array = PyMem_Calloc(count ? count : 1, sizeof(*array));
    if (!array)
        return (void **)PyErr_NoMemory();
    for (size_t i = 0; i < count; i++) {
        PyObject *item = PySequence_GetItem(sequence, (Py_ssize_t)i);
        int good = item && ext_to_address(item, &array[i]);

        Py_XDECREF(item);
        if (!good) {
            PyMem_Free(array);
            return NULL;
        }
    }
    return array;
}

int ext_put(PyObject *dict, const char *key, uint64_t value)
{
    PyObject *number = PyLong_FromUnsignedLongLong(value);
    int failed = !number || PyDict_SetItemString(dict, key, number);

    Py_XDECREF(number);
    return failed ? -1 : 0;
}
