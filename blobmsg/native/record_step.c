/* The step in which a record joins its open segment; see blobmsg/record_step.py, its twin.
 *
 * The GIL is held from the look for the segment until the record is counted and in its rows, and
 * no Python code runs in between: for other threads, signal handlers and finalizers it is one step.
 */

#include "native.h"

#include <structmember.h>
#include <time.h>

#define CHARGE_BYTES_PER_RECORD 128
#define ENCODED_BYTES_PER_RECORD 16

/* --- the fields that the step moves; Python classes inherit them ----------------------------- */

typedef struct {
    PyObject_HEAD
    long long records, records_bytes, records_ceiling_bytes, limit_records;
} MemoryFields;

typedef struct {
    PyObject_HEAD
    long long size_bytes, seal_at_bytes;
} LaneFields;

typedef struct {
    PyObject_HEAD
    char is_deciding;
} CoreFields;

typedef struct {
    PyObject_HEAD
    PyObject *lane, *rows, *callback;
    long long charged_bytes, records_left;
} SegmentFields;

typedef struct {
    PyObject_HEAD
    PyObject *open_segments;
    Py_ssize_t partition_count;
} TopicFields;

#define FIELD(Type, kind, name) {#name, kind, offsetof(Type, name), 0, NULL}

static PyMemberDef memory_members[] = {
    FIELD(MemoryFields, T_LONGLONG, records),
    FIELD(MemoryFields, T_LONGLONG, records_bytes),
    FIELD(MemoryFields, T_LONGLONG, records_ceiling_bytes),
    FIELD(MemoryFields, T_LONGLONG, limit_records),
    {NULL},
};

static PyMemberDef lane_members[] = {
    FIELD(LaneFields, T_LONGLONG, size_bytes),
    FIELD(LaneFields, T_LONGLONG, seal_at_bytes),
    {NULL},
};

static PyMemberDef core_members[] = {
    FIELD(CoreFields, T_BOOL, is_deciding),
    {NULL},
};

static PyMemberDef segment_members[] = {
    FIELD(SegmentFields, T_OBJECT_EX, lane),
    FIELD(SegmentFields, T_OBJECT_EX, rows),
    FIELD(SegmentFields, T_OBJECT_EX, callback),
    FIELD(SegmentFields, T_LONGLONG, charged_bytes),
    FIELD(SegmentFields, T_LONGLONG, records_left),
    {NULL},
};

static PyMemberDef topic_members[] = {
    FIELD(TopicFields, T_OBJECT_EX, open_segments),
    FIELD(TopicFields, T_PYSSIZET, partition_count),
    {NULL},
};

static int segment_traverse(SegmentFields *self, visitproc visit, void *arg)
{
    Py_VISIT(self->lane);
    Py_VISIT(self->rows);
    Py_VISIT(self->callback);
    return 0;
}

static int segment_clear(SegmentFields *self)
{
    Py_CLEAR(self->lane);
    Py_CLEAR(self->rows);
    Py_CLEAR(self->callback);
    return 0;
}

static void segment_dealloc(SegmentFields *self)
{
    PyObject_GC_UnTrack(self);
    segment_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static int topic_traverse(TopicFields *self, visitproc visit, void *arg)
{
    Py_VISIT(self->open_segments);
    return 0;
}

static int topic_clear(TopicFields *self)
{
    Py_CLEAR(self->open_segments);
    return 0;
}

static void topic_dealloc(TopicFields *self)
{
    PyObject_GC_UnTrack(self);
    topic_clear(self);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

#define FIELDS_TYPE(Struct, members, more_flags)                                                  \
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "blobmsg.native._native." #Struct,                    \
                                  .tp_basicsize = sizeof(Struct),                                  \
                                  .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE |           \
                                              more_flags,                                          \
                                  .tp_members = members, .tp_new = blobmsg_new_fields,             \
                                  .tp_init = blobmsg_init_fields

static PyTypeObject memory_type = {FIELDS_TYPE(MemoryFields, memory_members, 0)};
static PyTypeObject lane_type = {FIELDS_TYPE(LaneFields, lane_members, 0)};
static PyTypeObject core_type = {FIELDS_TYPE(CoreFields, core_members, 0)};
static PyTypeObject segment_type = {
    FIELDS_TYPE(SegmentFields, segment_members, Py_TPFLAGS_HAVE_GC),
    .tp_traverse = (traverseproc)segment_traverse,
    .tp_clear = (inquiry)segment_clear,
    .tp_dealloc = (destructor)segment_dealloc,
};
static PyTypeObject topic_type = {
    FIELDS_TYPE(TopicFields, topic_members, Py_TPFLAGS_HAVE_GC),
    .tp_traverse = (traverseproc)topic_traverse,
    .tp_clear = (inquiry)topic_clear,
    .tp_dealloc = (destructor)topic_dealloc,
};

/* --- CRC-32 of a key, as zlib's: eight bytes at a time ---------------------------------------- */

static uint32_t crc_table[8][256];

static void make_crc_table(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0xEDB88320u : crc >> 1;
        crc_table[0][byte] = crc;
    }
    for (int row = 1; row < 8; row++)
        for (int byte = 0; byte < 256; byte++) {
            uint32_t crc = crc_table[row - 1][byte];
            crc_table[row][byte] = crc >> 8 ^ crc_table[0][crc & 255];
        }
}

static uint32_t crc32_of(const unsigned char *data, Py_ssize_t size)
{
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low, high;
        memcpy(&low, data, 4);
        memcpy(&high, data + 4, 4);
        low ^= crc;
        crc = crc_table[7][low & 255] ^ crc_table[6][low >> 8 & 255] ^
              crc_table[5][low >> 16 & 255] ^ crc_table[4][low >> 24] ^
              crc_table[3][high & 255] ^ crc_table[2][high >> 8 & 255] ^
              crc_table[1][high >> 16 & 255] ^ crc_table[0][high >> 24];
    }
    for (; size; data++, size--)
        crc = crc >> 8 ^ crc_table[0][(crc ^ *data) & 255];
    return ~crc;
}

/* --- the step ----------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *topics; /* dict of name -> TopicFields */
    MemoryFields *memory;
    CoreFields *core;
    PyObject *seal;
    long long record_max_bytes;
} RecordStep;

static long long current_ms(void)
{
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (long long)time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* Whether two callbacks are the same one; a method is another object for each look at it. */
static int is_same(PyObject *one, PyObject *other)
{
    return one == other ||
           (PyMethod_Check(one) && PyMethod_Check(other) &&
            PyMethod_GET_SELF(one) == PyMethod_GET_SELF(other) &&
            PyMethod_GET_FUNCTION(one) == PyMethod_GET_FUNCTION(other));
}

/* Add a record to its segment. Returns 1 when it joined, 0 when it can't here, -1 for an exception;
 * `full` becomes a new reference to the lane when that has to be sealed. */
static int join(RecordStep *self, TopicFields *topic, PyObject *key, PyObject *value,
                Py_ssize_t partition, PyObject *callback, long long timestamp_ms, LaneFields **full)
{
    MemoryFields *memory = self->memory;
    Cell key_cell = {PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key)};
    Cell value_cell = {PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value)};
    long long payload_bytes = (long long)key_cell.size + value_cell.size;
    if (partition < 0) {
        if (topic->partition_count <= 0)
            return 0;
        partition = crc32_of((const unsigned char *)key_cell.data, key_cell.size) %
                    (uint32_t)topic->partition_count;
    }
    PyObject *segments = topic->open_segments;
    if (self->core->is_deciding || payload_bytes > self->record_max_bytes ||
        memory->records_bytes + payload_bytes > memory->records_ceiling_bytes ||
        memory->records >= memory->limit_records || partition >= topic->partition_count ||
        segments == NULL || !PyList_CheckExact(segments) ||
        partition >= PyList_GET_SIZE(segments))
        return 0;
    PyObject *found = PyList_GET_ITEM(segments, partition);
    if (!PyObject_TypeCheck(found, &segment_type))
        return 0; /* None: not open */
    SegmentFields *segment = (SegmentFields *)found;
    Rows *rows = (Rows *)segment->rows;
    if (rows == NULL || !Py_IS_TYPE(rows, &blobmsg_rows_type) || rows->is_read ||
        segment->records_left <= 0 || segment->lane == NULL ||
        !PyObject_TypeCheck(segment->lane, &lane_type) ||
        !(rows->width == WIDE ||
          (segment->callback != NULL && is_same(segment->callback, callback))))
        return 0;
    if (blobmsg_rows_add(rows, key_cell, value_cell, timestamp_ms, Py_None, callback) < 0)
        return -1;
    LaneFields *lane = (LaneFields *)segment->lane;
    lane->size_bytes += payload_bytes + ENCODED_BYTES_PER_RECORD;
    segment->charged_bytes += payload_bytes + CHARGE_BYTES_PER_RECORD;
    segment->records_left--;
    memory->records_bytes += payload_bytes + CHARGE_BYTES_PER_RECORD;
    memory->records++;
    if (lane->size_bytes >= lane->seal_at_bytes)
        *full = (LaneFields *)Py_NewRef(lane);
    return 1;
}

static int seal(RecordStep *self, LaneFields *full)
{
    PyObject *done = self->seal == Py_None /* being collected */
                         ? Py_NewRef(Py_None)
                         : PyObject_CallFunctionObjArgs(self->seal, (PyObject *)full, Py_False, NULL);
    Py_DECREF(full);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* The partition of an argument; -2 when it is none that the step takes. */
static Py_ssize_t partition_of(PyObject *argument)
{
    if (!PyLong_CheckExact(argument))
        return -2;
    int overflow;
    long partition = PyLong_AsLongAndOverflow(argument, &overflow);
    return overflow || partition < -1 || partition > 0x7FFFFFFF ? -2 : partition;
}

/* (topic, key, value, partition, callback, timestamp_ms, headers) -> whether it joined */
static PyObject *step_call(RecordStep *self, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    if (PyVectorcall_NARGS(nargsf) != 7 || kwnames != NULL) {
        PyErr_SetString(PyExc_TypeError, "RecordStep takes 7 arguments by position");
        return NULL;
    }
    PyObject *name = args[0], *key = args[1], *value = args[2], *given = args[5];
    if (args[6] != Py_None || !PyUnicode_CheckExact(name) || !PyBytes_CheckExact(key) ||
        !PyBytes_GET_SIZE(key) || !PyBytes_CheckExact(value) || !PyLong_CheckExact(given))
        Py_RETURN_FALSE;
    Py_ssize_t partition = partition_of(args[3]);
    PyObject *topic = PyDict_GetItemWithError(self->topics, name);
    if (topic == NULL && PyErr_Occurred())
        return NULL;
    int overflow;
    long long given_ms = PyLong_AsLongLongAndOverflow(given, &overflow);
    if (topic == NULL || partition < -1 || overflow || !PyObject_TypeCheck(topic, &topic_type))
        Py_RETURN_FALSE;
    LaneFields *full = NULL;
    int joined = join(self, (TopicFields *)topic, key, value, partition, args[4],
                      given_ms ? given_ms : current_ms(), &full);
    if (joined < 0 || (full != NULL && seal(self, full) < 0))
        return NULL;
    return PyBool_FromLong(joined);
}

static PyObject *key_name, *value_name; /* the strings "key" and "value" */

static int is_name(PyObject *found, PyObject *name, const char *text)
{
    return found == name ||
           (PyUnicode_CheckExact(found) && PyUnicode_CompareWithASCIIString(found, text) == 0);
}

/* What is in a message of two fields. Borrowed references: no Python code runs while they are used. */
typedef struct {
    PyObject *names[2], *cells[2];
} Fields;

/* Look into a message; 0 when it has not two fields. */
static int two_fields(PyObject *message, Fields *fields)
{
    Py_ssize_t place = 0;
    return PyDict_CheckExact(message) && PyDict_GET_SIZE(message) == 2 &&
           PyDict_Next(message, &place, &fields->names[0], &fields->cells[0]) &&
           PyDict_Next(message, &place, &fields->names[1], &fields->cells[1]);
}

/* The key and value of a message that has nothing else; 0 when it is none. */
static int plain_cells(const Fields *fields, PyObject **key, PyObject **value)
{
    int key_place = is_name(fields->names[0], key_name, "key") ? 0 : 1;
    if (!is_name(fields->names[key_place], key_name, "key") ||
        !is_name(fields->names[!key_place], value_name, "value"))
        return 0;
    *key = fields->cells[key_place];
    *value = fields->cells[!key_place];
    return PyBytes_CheckExact(*key) && PyBytes_GET_SIZE(*key) && PyBytes_CheckExact(*value);
}

/* The same of the message at a place; 0 behind the last one, too. */
static int message_cells(PyObject *messages, Py_ssize_t place, PyObject **key, PyObject **value)
{
    Fields fields;
    return place < PyList_GET_SIZE(messages) &&
           two_fields(PyList_GET_ITEM(messages, place), &fields) && plain_cells(&fields, key, value);
}

/* Messages wait in memory, not in the cache: each thing is fetched before it is needed, first the
 * dict, then its table, then what is in it. */
#define DICTS_AHEAD 16
#define TABLES_AHEAD 8
#define CELLS_AHEAD 4
#define LINE_BYTES 64
#define TABLE_BYTES 128
#define MAX_AHEAD_BYTES 1024

static void prefetch(const void *start, Py_ssize_t size)
{
#ifdef __GNUC__
    for (Py_ssize_t place = 0; place < size; place += LINE_BYTES)
        __builtin_prefetch((const char *)start + place);
#else
    (void)start, (void)size;
#endif
}

/* (messages) -> the places of those that are no dict of a key and a value, both bytes, alone */
static PyObject *unusual_places(PyObject *Py_UNUSED(module), PyObject *messages)
{
    if (!PyList_Check(messages)) {
        PyErr_SetString(PyExc_TypeError, "messages must be a list");
        return NULL;
    }
    PyObject *unusual = PyList_New(0);
    Py_ssize_t count = PyList_GET_SIZE(messages);
    Fields ring[CELLS_AHEAD];
    char has_two[CELLS_AHEAD];
    for (Py_ssize_t index = -CELLS_AHEAD; unusual != NULL && index < count; index++) {
        Py_ssize_t ahead = index + CELLS_AHEAD;
        Fields *fields = &ring[ahead % CELLS_AHEAD];
        char *is_known = &has_two[ahead % CELLS_AHEAD];
        PyObject *key, *value;
        if (index >= 0 && !(*is_known && plain_cells(fields, &key, &value))) {
            PyObject *place = PyLong_FromSsize_t(index);
            if (place == NULL || PyList_Append(unusual, place) < 0)
                Py_CLEAR(unusual);
            Py_XDECREF(place);
        }
        if (ahead + DICTS_AHEAD < count)
            prefetch(PyList_GET_ITEM(messages, ahead + DICTS_AHEAD), LINE_BYTES);
        if (ahead + TABLES_AHEAD < count) {
            PyObject *message = PyList_GET_ITEM(messages, ahead + TABLES_AHEAD);
            if (PyDict_Check(message))
                prefetch(((PyDictObject *)message)->ma_keys, TABLE_BYTES);
        }
        if (ahead < count) {
            *is_known = (char)two_fields(PyList_GET_ITEM(messages, ahead), fields);
            if (*is_known) {
                prefetch(fields->cells[0], LINE_BYTES);
                prefetch(fields->cells[1], LINE_BYTES);
            }
        }
    }
    return unusual;
}

/* join_messages(topic, messages, first, partition, callback) -> place of the first not taken */
static PyObject *step_join_messages(RecordStep *self, PyObject *args)
{
    PyObject *name, *messages, *partition_argument, *callback;
    Py_ssize_t place;
    if (!PyArg_ParseTuple(args, "O!O!nOO", &PyUnicode_Type, &name, &PyList_Type, &messages, &place,
                          &partition_argument, &callback))
        return NULL;
    Py_ssize_t partition = partition_of(partition_argument);
    PyObject *topic = PyDict_GetItemWithError(self->topics, name);
    if (topic == NULL && PyErr_Occurred())
        return NULL;
    if (topic == NULL || place < 0 || partition < -1 || !PyObject_TypeCheck(topic, &topic_type))
        return PyLong_FromSsize_t(place);
    long long now_ms = current_ms();
    Py_INCREF(topic);
    LaneFields *full = NULL;
    int joined = 1;
    PyObject *key, *value;
    int is_plain = message_cells(messages, place, &key, &value);
    while (full == NULL && is_plain) {
        PyObject *next_key, *next_value;
        is_plain = message_cells(messages, place + 1, &next_key, &next_value);
        if (is_plain)
            prefetch(PyBytes_AS_STRING(next_value),
                     Py_MIN(PyBytes_GET_SIZE(next_value), MAX_AHEAD_BYTES));
        joined = join(self, (TopicFields *)topic, key, value, partition, callback, now_ms, &full);
        if (joined <= 0)
            break;
        place++;
        key = next_key;
        value = next_value;
    }
    Py_DECREF(topic);
    if (joined < 0 || (full != NULL && seal(self, full) < 0))
        return NULL;
    return PyLong_FromSsize_t(place);
}

static PyObject *step_new(PyTypeObject *type, PyObject *args, PyObject *Py_UNUSED(kw))
{
    PyObject *topics, *memory, *core, *seal_lane;
    long long record_max_bytes;
    if (!PyArg_ParseTuple(args, "O!O!O!OL", &PyDict_Type, &topics, &memory_type, &memory, &core_type,
                          &core, &seal_lane, &record_max_bytes))
        return NULL;
    RecordStep *self = (RecordStep *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = (vectorcallfunc)step_call;
    self->topics = Py_NewRef(topics);
    self->memory = (MemoryFields *)Py_NewRef(memory);
    self->core = (CoreFields *)Py_NewRef(core);
    self->seal = Py_NewRef(seal_lane);
    self->record_max_bytes = record_max_bytes;
    return (PyObject *)self;
}

static int step_traverse(RecordStep *self, visitproc visit, void *arg)
{
    Py_VISIT(self->topics);
    Py_VISIT(self->memory);
    Py_VISIT(self->core);
    Py_VISIT(self->seal);
    return 0;
}

/* `seal` leads back to who has the step; the rest a call may still need. */
static int step_clear(RecordStep *self)
{
    Py_XSETREF(self->seal, Py_NewRef(Py_None));
    return 0;
}

static void step_dealloc(RecordStep *self)
{
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->topics);
    Py_CLEAR(self->memory);
    Py_CLEAR(self->core);
    Py_CLEAR(self->seal);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyMethodDef step_methods[] = {
    {"join_messages", (PyCFunction)step_join_messages, METH_VARARGS, NULL},
    {NULL},
};

static PyTypeObject step_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "blobmsg.native._native.RecordStep",
    .tp_basicsize = sizeof(RecordStep),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(RecordStep, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_methods = step_methods,
    .tp_new = step_new,
    .tp_traverse = (traverseproc)step_traverse,
    .tp_clear = (inquiry)step_clear,
    .tp_dealloc = (destructor)step_dealloc,
};

static PyMethodDef functions[] = {
    {"unusual_places", unusual_places, METH_O, NULL},
    {NULL},
};

int blobmsg_add_record_step(PyObject *module)
{
    make_crc_table();
    key_name = PyUnicode_InternFromString("key");
    value_name = PyUnicode_InternFromString("value");
    if (key_name == NULL || value_name == NULL || PyModule_AddFunctions(module, functions) < 0)
        return -1;
    PyTypeObject *types[] = {&memory_type, &lane_type,  &core_type,
                             &segment_type, &topic_type, &step_type};
    for (size_t index = 0; index < sizeof types / sizeof *types; index++)
        if (PyModule_AddType(module, types[index]) < 0)
            return -1;
    if (PyModule_AddIntMacro(module, CHARGE_BYTES_PER_RECORD) < 0)
        return -1;
    return PyModule_AddIntMacro(module, ENCODED_BYTES_PER_RECORD);
}
