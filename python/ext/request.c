/* _tide.Request: one collective under way. */
#include "ext.h"

/* Completes and frees the request; the object holds nothing afterwards. */
static tide_status free_request(ext_request *self)
{
    ext_comm *comm = self->owner->owner;
    tide_request *request = self->request;
    tide_status status = TIDE_OK;

    self->request = NULL;
    self->shard = NULL;
    if (request && ext_comm_is_mine(comm))
        EXT_RUN(comm, status = tide_request_free(request));
    return status;
}

static void request_drop(PyObject *object)
{
    free_request((ext_request *)object);
}

/* Also true of an all-gather that was begun and not started, and while
 * another thread is in a call. */
static int request_pending(PyObject *object)
{
    ext_request *self = (ext_request *)object;
    ext_comm *comm = self->owner->owner;
    int done = 0, read = 0;

    if (!self->request)
        return 0;
    if (pthread_mutex_trylock(&comm->lock))
        return 1;
    if (tide_test(self->request, TIDE_PHASE_DONE, &done) ||
        tide_test(self->request, TIDE_PHASE_READS, &read))
        done = 0;
    pthread_mutex_unlock(&comm->lock);
    return !done || !read;
}

PyObject *ext_request_new(ext_group *group, tide_request *request, void *shard)
{
    ext_request *self = ext_new(ext_request_type);

    if (!self) {
        EXT_RUN(group->owner, tide_request_free(request));
        return NULL;
    }
    Py_INCREF(group);
    self->owner = group;
    self->request = request;
    self->shard = shard;
    self->child = (ext_child){.object = (PyObject *)self,
                              .drop = request_drop,
                              .pending = request_pending};
    ext_comm_adopt(group->owner, &self->child);
    return (PyObject *)self;
}

static void request_dealloc(PyObject *object)
{
    ext_request *self = (ext_request *)object;
    ext_comm *comm = self->owner->owner;

    free_request(self);
    Py_DECREF(self->owner);
    ext_comm_release(comm, &self->child);
    ext_free(object);
}

static int request_check(ext_request *self)
{
    if (self->request && ext_comm_is_mine(self->owner->owner))
        return 0;
    ext_raise_text(TIDE_ERR_INVALID,
                   self->request ? "the request belongs to the process that "
                                   "forked this one"
                                 : "the request is closed");
    return -1;
}

static PyObject *request_start(PyObject *object, PyObject *args)
{
    ext_request *self = (ext_request *)object;
    const tide_layout *layout;
    PyObject *addresses;
    tide_status status;
    void **storage, *stream = NULL;

    if (!PyArg_ParseTuple(args, "O|O&", &addresses, ext_to_address, &stream) ||
        request_check(self))
        return NULL;
    layout = tide_group_layout(self->owner->group);
    storage = ext_addresses(addresses, tide_layout_count(layout));
    if (!storage)
        return NULL;
    EXT_RUN(self->owner->owner,
            status = tide_all_gather_start(self->request, storage, stream));
    PyMem_Free(storage);
    if (status != TIDE_ERR_INVALID) /* then it may be tried again */
        self->shard = NULL;
    return ext_none(status);
}

/* The optional phase argument: "done" unless given. */
static int parse_phase(PyObject *args, tide_phase *phase)
{
    *phase = TIDE_PHASE_DONE;
    return PyArg_ParseTuple(args, "|O&", ext_to_phase, phase);
}

static PyObject *request_wait(PyObject *object, PyObject *args)
{
    ext_request *self = (ext_request *)object;
    tide_status status;
    tide_phase phase;

    if (!parse_phase(args, &phase) || request_check(self))
        return NULL;
    EXT_RUN(self->owner->owner, status = tide_wait(self->request, phase));
    return ext_none(status);
}

static PyObject *request_stream_wait(PyObject *object, PyObject *args)
{
    ext_request *self = (ext_request *)object;
    tide_status status;
    tide_phase phase;
    void *stream;

    if (!PyArg_ParseTuple(args, "O&O&", ext_to_phase, &phase, ext_to_address,
                          &stream) ||
        request_check(self))
        return NULL;
    EXT_RUN(self->owner->owner,
            status = tide_stream_wait(self->request, phase, stream));
    return ext_none(status);
}

static PyObject *request_test(PyObject *object, PyObject *args)
{
    ext_request *self = (ext_request *)object;
    tide_status status;
    tide_phase phase;
    int reached = 0;

    if (!parse_phase(args, &phase) || request_check(self))
        return NULL;
    EXT_RUN(self->owner->owner,
            status = tide_test(self->request, phase, &reached));
    return status ? ext_raise(status) : PyBool_FromLong(reached);
}

static PyObject *request_close(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    return ext_none(free_request((ext_request *)object));
}

static PyObject *request_buffer(PyObject *object, void *ignored)
{
    ext_request *self = (ext_request *)object;
    const tide_layout *layout;

    (void)ignored;
    if (request_check(self))
        return NULL;
    if (!self->shard || self->owner->owner->queued)
        Py_RETURN_NONE;
    layout = tide_group_layout(self->owner->group);
    return PyMemoryView_FromMemory(
        self->shard, (Py_ssize_t)tide_layout_shard_bytes(layout), PyBUF_WRITE);
}

static PyObject *request_stage(PyObject *object, void *ignored)
{
    ext_request *self = (ext_request *)object;

    (void)ignored;
    if (request_check(self))
        return NULL;
    return PyLong_FromVoidPtr(self->owner->owner->queued ? self->shard : NULL);
}

static PyMethodDef request_methods[] = {
    {"start", request_start, METH_VARARGS,
     "start(addresses, stream=0): starts the all-gather into a storage a\n"
     "parameter, on a device after what the stream holds now."},
    {"stream_wait", request_stream_wait, METH_VARARGS,
     "stream_wait(phase, stream): what the stream is given from now on runs\n"
     "after the phase. On devices."},
    {"wait", request_wait, METH_VARARGS,
     "wait(phase='done'): until the phase ('free', 'reads', 'done')."},
    {"test", request_test, METH_VARARGS,
     "test(phase='done'): moves on without waiting; whether it is reached."},
    {"close", request_close, METH_NOARGS,
     "Waits until every phase is complete and frees the request; on a device\n"
     "it does not wait, and what is queued goes on."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef request_getset[] = {
    {"buffer", request_buffer, NULL,
     "The packed shard to fill, a writable memoryview valid until start();\n"
     "None afterwards and on devices.",
     NULL},
    {"stage", request_stage, NULL,
     "On devices, the address of the packed shard to fill until start(); else\n"
     "0.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot request_slots[] = {
    {Py_tp_dealloc, request_dealloc},
    {Py_tp_methods, request_methods},
    {Py_tp_getset, request_getset},
    {Py_tp_doc, "A collective under way. Dropping it completes it."},
    {0, NULL},
};

PyType_Spec ext_request_spec = {
    .name = "tide._tide.Request",
    .basicsize = sizeof(ext_request),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = request_slots,
};
