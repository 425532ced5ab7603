/*
 * _tide: libtide for Python, thin. One file a type; this header is what they
 * share.
 *
 * Lifetimes: a group, slot or request holds its communicator, so that the
 * native communicator goes last, whatever order the collector picks.
 * Threads: libtide wants one thread at a time on a communicator, and blocking
 * calls run without the GIL; each communicator therefore has a lock.
 */
#ifndef TIDE_EXT_H
#define TIDE_EXT_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000 /* Python 3.10 and every later one */
#include <Python.h>
#include <pthread.h>
#include <sys/types.h>
#include <tide/tide.h>

#ifndef PyBUF_WRITE /* absent from the limited headers of 3.10 */
#define PyBUF_WRITE 0x200
#endif

/* What a communicator knows of a group, slot or request that is alive. */
typedef struct ext_child {
    PyObject *object;
    struct ext_child *next;
    struct ext_child **at;      /* what points to this one */
    void (*drop)(PyObject *);   /* frees the native object; once */
    int (*pending)(PyObject *); /* requests: is it unfinished? Else NULL */
} ext_child;

typedef struct ext_comm {
    PyObject head;
    tide_comm *comm; /* NULL once destroyed */
    pthread_mutex_t lock;
    ext_child *children;
    pid_t process; /* a fork's copy is never freed: peers would see it go */
    int closed;    /* no new work; comm goes with the last child */
    int queued;    /* its pointers are device memory */
} ext_comm;

typedef struct ext_group {
    PyObject head;
    ext_comm *owner;
    ext_child child;
    tide_group *group; /* NULL once the communicator was left */
} ext_group;

typedef struct ext_request {
    PyObject head;
    ext_group *owner;
    ext_child child;
    tide_request *request; /* NULL once freed */
    void *shard;           /* the STAGE slot; NULL once started */
} ext_request;

typedef struct ext_slot {
    PyObject head;
    ext_comm *owner;
    ext_child child;
    tide_slot *slot; /* NULL once freed */
    uint64_t bytes;
} ext_slot;

extern PyTypeObject *ext_group_type;
extern PyTypeObject *ext_request_type;
extern PyTypeObject *ext_slot_type;
extern PyObject *ext_error;

/* The statement, in the communicator's turn and without the GIL. */
#define EXT_RUN(owner, statement)                                              \
    do {                                                                       \
        PyThreadState *ext_thread = PyEval_SaveThread();                       \
        pthread_mutex_lock(&(owner)->lock);                                    \
        statement;                                                             \
        pthread_mutex_unlock(&(owner)->lock);                                  \
        PyEval_RestoreThread(ext_thread);                                      \
    } while (0)

/* Raises Error with tide_last_error() and the status's name; NULL. */
PyObject *ext_raise(tide_status status);
/* The same with a text of our own. */
PyObject *ext_raise_text(tide_status status, const char *text);
/* Status to None, or the exception. */
PyObject *ext_none(tide_status status);

/* 0, or -1 with Error set when the communicator was closed, or is another
 * process's. */
int ext_comm_check(ext_comm *comm);
/* Was it made by this process, and not by the one that forked it? */
int ext_comm_is_mine(const ext_comm *comm);
/* A child is born and holds the communicator; or has gone. The caller has set
 * its object, drop and pending. */
void ext_comm_adopt(ext_comm *comm, ext_child *child);
void ext_comm_release(ext_comm *comm, ext_child *child);

/* Allocates an instance; NULL with MemoryError. */
void *ext_new(PyTypeObject *type);
/* Frees the instance and its reference to the type. */
void ext_free(PyObject *self);

PyObject *ext_group_new(ext_comm *comm, PyObject *params, const char *name);
PyObject *ext_slot_new(ext_comm *comm, uint64_t bytes);
PyObject *ext_request_new(ext_group *group, tide_request *request, void *shard);

/* Converters for PyArg_Parse's O&: 1, or 0 with an exception. */
int ext_to_u32(PyObject *object, void *out);
int ext_to_u64(PyObject *object, void *out);
int ext_to_dtype(PyObject *object, void *out);
int ext_to_coll(PyObject *object, void *out);
int ext_to_phase(PyObject *object, void *out);
int ext_to_address(PyObject *object, void *out);
/* A new array of `count` addresses from a sequence of as many numbers; NULL
 * with an exception. Free it with PyMem_Free. */
void **ext_addresses(PyObject *sequence, size_t count);
/* Adds key: number to a dict and eats neither; -1 with an exception. */
int ext_put(PyObject *dict, const char *key, uint64_t value);

extern PyType_Spec ext_comm_spec;
extern PyType_Spec ext_group_spec;
extern PyType_Spec ext_request_spec;
extern PyType_Spec ext_slot_spec;

#endif
