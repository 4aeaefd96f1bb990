/* What the C files of blobmsg.native share. Each function and type has a twin in Python, which
 * serves where no compiler built this: blobmsg/record_step.py with the fields of
 * blobmsg/core/step_fields.py, in blobmsg/format/ rows.py, cells.py, segment.py and
 * crc32_combine.py, and blobmsg/message.py. */

#ifndef BLOBMSG_NATIVE_H
#define BLOBMSG_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_BIG_ENDIAN
#error "the formats are little-endian: the Python code serves here"
#endif
#if SIZEOF_VOID_P < 8
#error "lengths are added up in 64 bits: the Python code serves here"
#endif

/* Cells of a row. */
#define NARROW 3 /* key, value, timestamp */
#define WIDE 5   /* headers and callback as well */

/* A piece of a column. */
typedef struct {
    char *data;
    Py_ssize_t start; /* in the column */
    Py_ssize_t capacity;
} Chunk;

/* Bytes that are only appended to, in pieces that never move. */
typedef struct {
    Chunk *chunks;
    Py_ssize_t count, room; /* chunks, and places for them */
    Py_ssize_t current;     /* the one that is written into */
    Py_ssize_t size;        /* bytes written */
    Py_ssize_t capacity;    /* of all chunks */
} Column;

/* A column of bytes or null. */
typedef struct {
    Column data;
    Column ends;  /* int32: where each cell's bytes end */
    Column valid; /* a byte for each record; empty as long as none is null */
    Py_ssize_t nulls;
} Cells;

/* zlib-ng's functions, from blobmsg/format/checksum.py; `of` is NULL when they are not at hand. */
typedef struct {
    uint32_t (*of)(uint32_t before, const unsigned char *data, uint32_t size);
    uint32_t (*combine)(uint32_t first, uint32_t second, int64_t second_size);
} Crc32;

extern Crc32 blobmsg_crc32; /* under the GIL */

/* The CRC-32 of a column's first bytes. */
typedef struct {
    uint32_t crc32;
    Py_ssize_t bytes;
} Checksum;

/* Records of one partition; blobmsg/format/rows.py, its twin, describes them. */
typedef struct {
    PyObject_HEAD
    Py_ssize_t width, record_count;
    char is_read; /* laid out as a segment: no record joins any more */
    long long first_timestamp_ms, last_timestamp_ms; /* least and largest */
    Column timestamps;
    Cells keys, values;
    Checksum values_checksum; /* goes on when records join */
    PyObject *headers, *callbacks; /* lists; NULL in narrow ones */
} Rows;

extern PyTypeObject blobmsg_rows_type;

/* A record's cell: bytes, or NULL for null. */
typedef struct {
    const char *data;
    Py_ssize_t size;
} Cell;

/* Add a record; -1 with an exception, and then nothing has changed. Runs no Python code. */
int blobmsg_rows_add(Rows *rows, Cell key, Cell value, long long timestamp_ms, PyObject *headers,
                     PyObject *callback);

/* A checksum carried on to the column's end. Needs no GIL when nothing is appended any more. */
Checksum blobmsg_column_checksum(const Column *column, Checksum checksum, Crc32 crc32);

/* Write the first chunks of a column to a place; returns the place behind. Needs no GIL. */
char *blobmsg_column_copy(const Column *column, Py_ssize_t chunks, char *place);

/* tp_new and tp_init of fields that Python classes inherit; their constructors take arguments, so
 * these ignore theirs. */
PyObject *blobmsg_new_fields(PyTypeObject *type, PyObject *args, PyObject *kwargs);
int blobmsg_init_fields(PyObject *self, PyObject *args, PyObject *kwargs);

/* Add the types and functions of a file to the module; -1 with an exception on failure. */
int blobmsg_add_rows(PyObject *module);
int blobmsg_add_cells(PyObject *module);
int blobmsg_add_message(PyObject *module);
int blobmsg_add_record_step(PyObject *module);
int blobmsg_add_segment(PyObject *module);

#endif
