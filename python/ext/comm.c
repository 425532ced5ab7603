/* _tide.Comm: a communicator, made over a Python allgather callable. */
#include "ext.h"

#include <string.h>
#include <unistd.h>

typedef struct bootstrap_context {
    PyObject *allgather;
    uint32_t ranks;
} bootstrap_context;

/* Copies item, bytes of the expected length, to `to`; -1 if it is not. */
static int copy_bytes(PyObject *item, void *to, size_t bytes)
{
    char *data;
    Py_ssize_t length;

    if (!item || PyBytes_AsStringAndSize(item, &data, &length))
        return -1;
    if ((size_t)length != bytes) {
        PyErr_Format(PyExc_ValueError,
                     "allgather returned %zd bytes where %zu were due", length,
                     bytes);
        return -1;
    }
    memcpy(to, data, bytes);
    return 0;
}

/* `gathered` is bytes of all ranks together, or a sequence of bytes. */
static int unpack_gathered(PyObject *gathered, uint32_t ranks, char *recv,
                           size_t bytes)
{
    if (PyBytes_Check(gathered))
        return copy_bytes(gathered, recv, bytes * ranks);
    if (PySequence_Size(gathered) != (Py_ssize_t)ranks) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError,
                            "allgather must return one bytes a rank");
        return -1;
    }
    for (uint32_t r = 0; r < ranks; r++) {
        PyObject *item = PySequence_GetItem(gathered, (Py_ssize_t)r);
        int failed = copy_bytes(item, recv + r * bytes, bytes);

        Py_XDECREF(item);
        if (failed)
            return -1;
    }
    return 0;
}

/* tide_bootstrap's callback: takes the GIL back for the Python callable. An
 * exception stays set, and comm_new finds it. */
static int call_allgather(void *context, const void *send, void *recv,
                          size_t bytes)
{
    const bootstrap_context *self = context;
    PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *gathered = NULL;
    int result = -1;

    if (!PyErr_Occurred())
        gathered = PyObject_CallFunction(self->allgather, "y#", send,
                                         (Py_ssize_t)bytes);
    if (gathered)
        result = unpack_gathered(gathered, self->ranks, recv, bytes);
    Py_XDECREF(gathered);
    PyGILState_Release(gil);
    return result;
}

static PyObject *create_comm(PyTypeObject *type, tide_bootstrap *bootstrap,
                             const tide_comm_config *config)
{
    tide_comm *comm = NULL;
    tide_comm_info info;
    PyThreadState *thread;
    tide_status status;
    ext_comm *self;

    thread = PyEval_SaveThread();
    status = tide_comm_create(bootstrap, config, &comm);
    PyEval_RestoreThread(thread);
    if (status)
        return PyErr_Occurred() ? NULL : ext_raise(status);
    self = ext_new(type);
    if (!self) {
        tide_comm_destroy(comm);
        return NULL;
    }
    self->comm = comm;
    self->queued = !tide_comm_get_info(comm, &info) && info.queued;
    self->process = getpid();
    pthread_mutex_init(&self->lock, NULL);
    return (PyObject *)self;
}

static PyObject *comm_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"rank",        "ranks",      "allgather",
                            "backend",     "local_size", "timeout_ms",
                            "arena_bytes", NULL};
    bootstrap_context context = {0};
    tide_bootstrap bootstrap = {.allgather = call_allgather,
                                .context = &context};
    tide_comm_config config = {0};

    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O&O&O|$zO&O&O&", names, ext_to_u32, &bootstrap.rank,
            ext_to_u32, &bootstrap.ranks, &context.allgather, &config.backend,
            ext_to_u32, &config.local_size, ext_to_u32, &config.timeout_ms,
            ext_to_u64, &config.arena_bytes))
        return NULL;
    context.ranks = bootstrap.ranks;
    return create_comm(type, &bootstrap, &config);
}

/* Tensors may still live in memory of its arena: then it stays until the
 * process ends. */
static int has_memory(tide_comm *comm)
{
    tide_comm_info info;

    return !tide_comm_get_info(comm, &info) && info.memory_bytes;
}

static void destroy_comm(ext_comm *self, int anyway)
{
    tide_comm *comm = self->comm;

    self->comm = NULL;
    if (comm && ext_comm_is_mine(self) && (anyway || !has_memory(comm)))
        EXT_RUN(self, tide_comm_destroy(comm));
}

static void comm_dealloc(PyObject *object)
{
    ext_comm *self = (ext_comm *)object;

    destroy_comm(self, 0);
    pthread_mutex_destroy(&self->lock);
    ext_free(object);
}

int ext_comm_is_mine(const ext_comm *comm)
{
    return comm->process == getpid();
}

int ext_comm_check(ext_comm *comm)
{
    if (!ext_comm_is_mine(comm)) {
        ext_raise_text(TIDE_ERR_INVALID,
                       "the communicator belongs to the process that forked "
                       "this one");
        return -1;
    }
    if (comm->comm && !comm->closed)
        return 0;
    ext_raise_text(TIDE_ERR_INVALID, "the communicator is closed");
    return -1;
}

void ext_comm_adopt(ext_comm *comm, ext_child *child)
{
    child->next = comm->children;
    child->at = &comm->children;
    if (child->next)
        child->next->at = &child->next;
    comm->children = child;
    Py_INCREF(comm);
}

void ext_comm_release(ext_comm *comm, ext_child *child)
{
    *child->at = child->next;
    if (child->next)
        child->next->at = child->at;
    if (!comm->children && comm->closed)
        destroy_comm(comm, 0);
    Py_DECREF(comm);
}

static PyObject *comm_close(PyObject *object, PyObject *ignored)
{
    ext_comm *self = (ext_comm *)object;

    (void)ignored;
    self->closed = 1;
    if (!self->children)
        destroy_comm(self, 0);
    Py_RETURN_NONE;
}

static int has_pending(const ext_comm *self)
{
    for (const ext_child *child = self->children; child; child = child->next)
        if (child->pending && child->pending(child->object))
            return 1;
    return 0;
}

/* Frees the native objects of all requests, or of all the rest. A drop lets
 * other threads run, so the list is looked at from its start again. */
static void drop_children(ext_comm *self, int requests)
{
    ext_child *child = self->children;

    while (child) {
        void (*drop)(PyObject *) = child->drop;

        if (!drop || requests != (child->pending != NULL)) {
            child = child->next;
            continue;
        }
        child->drop = NULL;
        drop(child->object);
        child = self->children;
    }
}

/* A rank that leaves in the middle of a call says so, rather than waiting for
 * peers that wait for it. */
static PyObject *comm_leave(PyObject *object, PyObject *ignored)
{
    ext_comm *self = (ext_comm *)object;

    (void)ignored;
    self->closed = 1;
    if (ext_comm_is_mine(self) && has_pending(self))
        tide_comm_abort(self->comm);
    drop_children(self, 1);
    drop_children(self, 0);
    destroy_comm(self, 1);
    Py_RETURN_NONE;
}

/* No lock: a thread that waits in a call holds it, and must be woken. */
static PyObject *comm_abort(PyObject *object, PyObject *ignored)
{
    ext_comm *self = (ext_comm *)object;

    (void)ignored;
    if (ext_comm_is_mine(self))
        tide_comm_abort(self->comm);
    Py_RETURN_NONE;
}

static PyObject *comm_vote(PyObject *object, PyObject *answer)
{
    ext_comm *self = (ext_comm *)object;
    tide_status status;
    int mine, all = 0;

    if (ext_comm_check(self) || (mine = PyObject_IsTrue(answer)) < 0)
        return NULL;
    EXT_RUN(self, status = tide_comm_vote(self->comm, mine, &all));
    return status ? ext_raise(status) : PyBool_FromLong(all);
}

static PyObject *comm_info(PyObject *object, PyObject *ignored)
{
    ext_comm *self = (ext_comm *)object;
    tide_comm_info info;
    tide_status status;

    (void)ignored;
    if (ext_comm_check(self))
        return NULL;
    EXT_RUN(self, status = tide_comm_get_info(self->comm, &info));
    if (status)
        return ext_raise(status);
    return Py_BuildValue(
        "{sI sI sI sI ss sN sN sN sN sK sK sK sK sK}", "rank", info.rank,
        "ranks", info.topology.nodes * info.topology.local_size, "nodes",
        info.topology.nodes, "local_size", info.topology.local_size, "backend",
        info.backend, "reads_private", PyBool_FromLong(info.reads_private),
        "queued", PyBool_FromLong(info.queued), "multicast",
        PyBool_FromLong(info.multicast), "one_machine",
        PyBool_FromLong(info.one_machine), "arena_bytes",
        (unsigned long long)info.arena_bytes, "buffer_bytes",
        (unsigned long long)info.buffer_bytes, "slot_bytes",
        (unsigned long long)info.slot_bytes, "memory_bytes",
        (unsigned long long)info.memory_bytes, "copied_bytes",
        (unsigned long long)info.copied_bytes);
}

static PyObject *comm_group(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"params", "name", NULL};
    PyObject *params;
    const char *name = NULL;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|z", names, &params,
                                     &name) ||
        ext_comm_check((ext_comm *)object))
        return NULL;
    return ext_group_new((ext_comm *)object, params, name);
}

static PyObject *comm_slot(PyObject *object, PyObject *bytes)
{
    uint64_t size;

    if (!ext_to_u64(bytes, &size) || ext_comm_check((ext_comm *)object))
        return NULL;
    return ext_slot_new((ext_comm *)object, size);
}

static PyObject *comm_memory_take(PyObject *object, PyObject *bytes)
{
    ext_comm *self = (ext_comm *)object;
    void *memory = NULL;
    tide_status status;
    uint64_t size;

    if (!ext_to_u64(bytes, &size) || ext_comm_check(self))
        return NULL;
    status = tide_memory_take(self->comm, size, &memory);
    return status ? ext_raise(status) : PyLong_FromVoidPtr(memory);
}

static PyObject *comm_memory_give(PyObject *object, PyObject *address)
{
    ext_comm *self = (ext_comm *)object;
    void *memory;

    if (!ext_to_address(address, &memory))
        return NULL;
    if (!self->comm) /* it went with the communicator */
        Py_RETURN_NONE;
    return ext_none(tide_memory_give(self->comm, memory));
}

static PyObject *comm_owns(PyObject *object, PyObject *args)
{
    ext_comm *self = (ext_comm *)object;
    unsigned long long bytes = 1;
    void *memory;

    if (!PyArg_ParseTuple(args, "O&|K", ext_to_address, &memory, &bytes))
        return NULL;
    return PyBool_FromLong(self->comm &&
                           tide_memory_owns(self->comm, memory, bytes));
}

static PyObject *comm_pool_select(PyObject *object, PyObject *ignored)
{
    ext_comm *self = (ext_comm *)object;

    (void)ignored;
    if (ext_comm_check(self))
        return NULL;
    return ext_none(tide_pool_select(self->comm));
}

static PyMethodDef comm_methods[] = {
    {"info", comm_info, METH_NOARGS,
     "A dict: rank, ranks, nodes, local_size, backend, reads_private,\n"
     "queued, multicast, one_machine, arena_bytes, buffer_bytes, slot_bytes,\n"
     "memory_bytes, copied_bytes."},
    {"vote", comm_vote, METH_O,
     "vote(mine): is it true on every rank? Collective; the host waits."},
    {"group", (PyCFunction)(void (*)(void))comm_group,
     METH_VARARGS | METH_KEYWORDS,
     "group(params, name=None): a Group of parameters, each a tuple\n"
     "(outer, rows, inner, dtype name). Local."},
    {"slot", comm_slot, METH_O, "slot(nbytes): a vacated Slot."},
    {"memory_take", comm_memory_take, METH_O,
     "memory_take(nbytes): the address of arena memory, which peers can read."},
    {"memory_give", comm_memory_give, METH_O,
     "memory_give(address): gives it back; nobody uses it any more."},
    {"owns", comm_owns, METH_VARARGS,
     "owns(address, nbytes=1): does it lie in the arena?"},
    {"pool_select", comm_pool_select, METH_NOARGS,
     "tide_pool_malloc takes memory of this communicator from now on."},
    {"abort", comm_abort, METH_NOARGS,
     "Makes every call on every rank fail at once. From any thread."},
    {"close", comm_close, METH_NOARGS,
     "No new work. The communicator is destroyed when its groups, slots and\n"
     "requests are gone: at once if there are none."},
    {"leave", comm_leave, METH_NOARGS,
     "For the end of a process: frees all that is alive on the communicator,\n"
     "and it. Peers see an abort if a request was under way. No memory of a\n"
     "slot may be touched any more."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot comm_slots[] = {
    {Py_tp_new, comm_new},
    {Py_tp_dealloc, comm_dealloc},
    {Py_tp_methods, comm_methods},
    {Py_tp_doc,
     "Comm(rank, ranks, allgather, *, backend=None, local_size=0,\n"
     "     timeout_ms=0, arena_bytes=0)\n\n"
     "Collective. allgather(bytes) returns the bytes of all ranks, as a list\n"
     "or joined, in rank order; it is called only here."},
    {0, NULL},
};

PyType_Spec ext_comm_spec = {
    .name = "tide._tide.Comm",
    .basicsize = sizeof(ext_comm),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = comm_slots,
};
