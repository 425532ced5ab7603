/* _tide.Slot: an address range whose memory comes and goes. */
#include "ext.h"

static void slot_drop(PyObject *object)
{
    ext_slot *self = (ext_slot *)object;
    ext_comm *comm = self->owner;
    tide_slot *slot = self->slot;

    self->slot = NULL;
    if (slot && ext_comm_is_mine(comm))
        EXT_RUN(comm, tide_slot_free(slot));
}

PyObject *ext_slot_new(ext_comm *comm, uint64_t bytes)
{
    tide_slot *slot = NULL;
    tide_status status;
    ext_slot *self;

    EXT_RUN(comm, status = tide_slot_create(comm->comm, bytes, &slot));
    if (status)
        return ext_raise(status);
    self = ext_new(ext_slot_type);
    if (!self) {
        EXT_RUN(comm, tide_slot_free(slot));
        return NULL;
    }
    self->owner = comm;
    self->slot = slot;
    self->bytes = bytes;
    self->child = (ext_child){.object = (PyObject *)self, .drop = slot_drop};
    ext_comm_adopt(comm, &self->child);
    return (PyObject *)self;
}

static void slot_dealloc(PyObject *object)
{
    ext_slot *self = (ext_slot *)object;

    slot_drop(object);
    ext_comm_release(self->owner, &self->child);
    ext_free(object);
}

static int slot_check(ext_slot *self)
{
    if (self->slot && ext_comm_is_mine(self->owner))
        return 0;
    ext_raise_text(TIDE_ERR_INVALID, self->slot ? "the slot belongs to the "
                                                  "process that forked this one"
                                                : "the slot is closed");
    return -1;
}

static PyObject *slot_occupy(PyObject *object, PyObject *ignored)
{
    ext_slot *self = (ext_slot *)object;
    tide_status status;

    (void)ignored;
    if (slot_check(self))
        return NULL;
    EXT_RUN(self->owner, status = tide_slot_occupy(self->slot));
    return ext_none(status);
}

static PyObject *slot_vacate(PyObject *object, PyObject *ignored)
{
    ext_slot *self = (ext_slot *)object;
    tide_status status;

    (void)ignored;
    if (slot_check(self))
        return NULL;
    EXT_RUN(self->owner, status = tide_slot_vacate(self->slot));
    return ext_none(status);
}

static PyObject *slot_close(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    slot_drop(object);
    Py_RETURN_NONE;
}

static PyObject *slot_address(PyObject *object, void *ignored)
{
    ext_slot *self = (ext_slot *)object;

    (void)ignored;
    if (slot_check(self))
        return NULL;
    return PyLong_FromVoidPtr(tide_slot_address(self->slot));
}

static PyObject *slot_nbytes(PyObject *object, void *ignored)
{
    (void)ignored;
    return PyLong_FromUnsignedLongLong(((ext_slot *)object)->bytes);
}

static PyObject *slot_buffer(PyObject *object, void *ignored)
{
    ext_slot *self = (ext_slot *)object;

    (void)ignored;
    if (slot_check(self))
        return NULL;
    return PyMemoryView_FromMemory(tide_slot_address(self->slot),
                                   (Py_ssize_t)self->bytes, PyBUF_WRITE);
}

static PyMethodDef slot_methods[] = {
    {"occupy", slot_occupy, METH_NOARGS,
     "Gives the slot memory of unspecified contents, if it has none."},
    {"vacate", slot_vacate, METH_NOARGS,
     "Takes the memory away; pages that peers still read live on."},
    {"close", slot_close, METH_NOARGS,
     "Frees the slot. Nothing may point into it any more."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef slot_getset[] = {
    {"address", slot_address, NULL, "Where the slot lies, for life.", NULL},
    {"nbytes", slot_nbytes, NULL, "Its size.", NULL},
    {"buffer", slot_buffer, NULL,
     "A writable memoryview. It does not keep the slot alive, and touching\n"
     "it while the slot is vacated is a fault.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slot_slots[] = {
    {Py_tp_dealloc, slot_dealloc},
    {Py_tp_methods, slot_methods},
    {Py_tp_getset, slot_getset},
    {Py_tp_doc, "An address range that holds memory while it is occupied."},
    {0, NULL},
};

PyType_Spec ext_slot_spec = {
    .name = "tide._tide.Slot",
    .basicsize = sizeof(ext_slot),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slot_slots,
};
