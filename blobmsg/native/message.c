/* What reading a consumed record costs: the fields of a message and of its segment, and the methods
 * that look at them; see blobmsg/message.py, which has the twins. */

#include "native.h"

#include <structmember.h>

/* What messages of one decoded segment share; RecordsView inherits it. */
typedef struct {
    PyObject_HEAD
    PyObject *topic, *partition, *key_of, *value_of, *timestamps_ms, *timestamp_type,
        *log_append_ms;
    long long first_virtual_offset;
} RecordsFields;

/* A message is a place in what its source has; Message inherits it. */
typedef struct {
    PyObject_HEAD
    PyObject *source;
    Py_ssize_t index;
} MessageFields;

#define OBJECT_FIELD(name) {#name, T_OBJECT, offsetof(RecordsFields, name), 0, NULL}

static PyMemberDef records_members[] = {
    OBJECT_FIELD(topic),
    OBJECT_FIELD(partition),
    OBJECT_FIELD(key_of),
    OBJECT_FIELD(value_of),
    OBJECT_FIELD(timestamps_ms),
    OBJECT_FIELD(timestamp_type),
    OBJECT_FIELD(log_append_ms),
    {"first_virtual_offset", T_LONGLONG, offsetof(RecordsFields, first_virtual_offset), 0, NULL},
    {NULL},
};

static PyMemberDef message_members[] = {
    {"_source", T_OBJECT, offsetof(MessageFields, source), 0, NULL},
    {"_index", T_PYSSIZET, offsetof(MessageFields, index), 0, NULL},
    {NULL},
};

static int records_traverse(RecordsFields *self, visitproc visit, void *arg)
{
    Py_VISIT(self->topic);
    Py_VISIT(self->partition);
    Py_VISIT(self->key_of);
    Py_VISIT(self->value_of);
    Py_VISIT(self->timestamps_ms);
    Py_VISIT(self->timestamp_type);
    Py_VISIT(self->log_append_ms);
    return 0;
}

static int records_clear(RecordsFields *self)
{
    Py_CLEAR(self->topic);
    Py_CLEAR(self->partition);
    Py_CLEAR(self->key_of);
    Py_CLEAR(self->value_of);
    Py_CLEAR(self->timestamps_ms);
    Py_CLEAR(self->timestamp_type);
    Py_CLEAR(self->log_append_ms);
    return 0;
}

static void records_dealloc(RecordsFields *self)
{
    PyObject_GC_UnTrack(self);
    records_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int message_traverse(MessageFields *self, visitproc visit, void *arg)
{
    Py_VISIT(self->source);
    return 0;
}

static int message_clear(MessageFields *self)
{
    Py_CLEAR(self->source);
    return 0;
}

static void message_dealloc(MessageFields *self)
{
    PyObject_GC_UnTrack(self);
    message_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyTypeObject records_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "blobmsg.native._native.RecordsFields",
    .tp_basicsize = sizeof(RecordsFields),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_members = records_members,
    .tp_new = blobmsg_new_fields,
    .tp_init = blobmsg_init_fields,
    .tp_traverse = (traverseproc)records_traverse,
    .tp_clear = (inquiry)records_clear,
    .tp_dealloc = (destructor)records_dealloc,
};

/* --- methods of messages in a segment ---------------------------------------------------------- */

static RecordsFields *source_of(MessageFields *self)
{
    if (self->source != NULL && PyObject_TypeCheck(self->source, &records_type))
        return (RecordsFields *)self->source;
    PyErr_SetString(PyExc_TypeError, "this message is in no segment");
    return NULL;
}

static PyObject *field_or_error(PyObject *field)
{
    if (field == NULL)
        PyErr_SetString(PyExc_AttributeError, "the segment's fields are not set");
    return Py_XNewRef(field);
}

static PyObject *cell(PyObject *cell_of, Py_ssize_t index)
{
    if (cell_of == NULL)
        return field_or_error(NULL);
    PyObject *number = PyLong_FromSsize_t(index);
    PyObject *found = number ? PyObject_CallOneArg(cell_of, number) : NULL;
    Py_XDECREF(number);
    return found;
}

static PyObject *segment_key(MessageFields *self, PyObject *Py_UNUSED(none))
{
    RecordsFields *source = source_of(self);
    return source ? cell(source->key_of, self->index) : NULL;
}

static PyObject *segment_value(MessageFields *self, PyObject *Py_UNUSED(none))
{
    RecordsFields *source = source_of(self);
    return source ? cell(source->value_of, self->index) : NULL;
}

static PyObject *segment_topic(MessageFields *self, PyObject *Py_UNUSED(none))
{
    RecordsFields *source = source_of(self);
    return source ? field_or_error(source->topic) : NULL;
}

static PyObject *segment_partition(MessageFields *self, PyObject *Py_UNUSED(none))
{
    RecordsFields *source = source_of(self);
    return source ? field_or_error(source->partition) : NULL;
}

static PyObject *segment_offset(MessageFields *self, PyObject *Py_UNUSED(none))
{
    RecordsFields *source = source_of(self);
    return source ? PyLong_FromLongLong(source->first_virtual_offset + self->index) : NULL;
}

static PyObject *segment_error(MessageFields *Py_UNUSED(self), PyObject *Py_UNUSED(none))
{
    Py_RETURN_NONE;
}

static PyObject *segment_timestamp(MessageFields *self, PyObject *Py_UNUSED(none))
{
    RecordsFields *source = source_of(self);
    if (source == NULL)
        return NULL;
    if (source->timestamp_type == NULL || source->log_append_ms == NULL ||
        source->timestamps_ms == NULL)
        return field_or_error(NULL);
    PyObject *time = source->log_append_ms != Py_None
                         ? Py_NewRef(source->log_append_ms)
                         : PySequence_GetItem(source->timestamps_ms, self->index);
    return time ? Py_BuildValue("(ON)", source->timestamp_type, time) : NULL;
}

#define SEGMENT_METHOD(name)                                                                      \
    {#name, (PyCFunction)segment_##name, METH_NOARGS, #name "($self, /)\n--\n\n"}

static PyMethodDef segment_methods[] = {
    SEGMENT_METHOD(topic),  SEGMENT_METHOD(partition), SEGMENT_METHOD(offset),
    SEGMENT_METHOD(key),    SEGMENT_METHOD(value),     SEGMENT_METHOD(error),
    SEGMENT_METHOD(timestamp),
    {"deserialized_key", (PyCFunction)segment_key, METH_NOARGS, NULL},
    {"deserialized_value", (PyCFunction)segment_value, METH_NOARGS, NULL},
    {NULL},
};

static PyTypeObject message_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "blobmsg.native._native.MessageFields",
    .tp_basicsize = sizeof(MessageFields),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_members = message_members,
    .tp_new = blobmsg_new_fields,
    .tp_init = blobmsg_init_fields,
    .tp_traverse = (traverseproc)message_traverse,
    .tp_clear = (inquiry)message_clear,
    .tp_dealloc = (destructor)message_dealloc,
};

/* Comes before Message among the bases of SegmentMessage. */
static PyTypeObject segment_methods_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "blobmsg.native._native.SegmentMethods",
    .tp_basicsize = sizeof(MessageFields),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_base = &message_type,
    .tp_methods = segment_methods,
    .tp_traverse = (traverseproc)message_traverse,
    .tp_clear = (inquiry)message_clear,
    .tp_dealloc = (destructor)message_dealloc,
};

/* make_messages(class, source, start, end) -> messages with these indices, made without `__init__` */
static PyObject *make_messages(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *type;
    PyObject *source;
    Py_ssize_t start, end;
    if (!PyArg_ParseTuple(args, "O!Onn", &PyType_Type, &type, &source, &start, &end))
        return NULL;
    if (!PyType_IsSubtype(type, &message_type)) {
        PyErr_SetString(PyExc_TypeError, "not a class of messages");
        return NULL;
    }
    PyObject *messages = PyList_New(Py_MAX(end - start, 0));
    for (Py_ssize_t index = start; messages != NULL && index < end; index++) {
        MessageFields *message = (MessageFields *)type->tp_alloc(type, 0);
        if (message == NULL) {
            Py_CLEAR(messages);
            break;
        }
        message->source = Py_NewRef(source);
        message->index = index;
        PyList_SET_ITEM(messages, index - start, (PyObject *)message);
    }
    return messages;
}

static PyMethodDef functions[] = {
    {"make_messages", make_messages, METH_VARARGS, NULL},
    {NULL},
};

int blobmsg_add_message(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0 ||
        PyModule_AddType(module, &records_type) < 0 || PyModule_AddType(module, &message_type) < 0)
        return -1;
    return PyModule_AddType(module, &segment_methods_type);
}
