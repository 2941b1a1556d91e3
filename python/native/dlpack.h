/*
 * The structs of DLPack 1 that the exchange with PyTorch passes, and PyTorch's functions of its C exchange API. Both
 * are public conventions.
 */
#ifndef WEFT_DLPACK_H
#define WEFT_DLPACK_H

#include <stdint.h>

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };

typedef struct {
	int32_t type, id;
} dl_device;

typedef struct {
	uint8_t code, bits;
	uint16_t lanes;
} dl_type;

typedef struct {
	void *data;
	dl_device device;
	int32_t ndim;
	dl_type dtype;
	int64_t *shape, *strides;
	uint64_t byte_offset;
} dl_tensor;

typedef struct {
	uint32_t major, minor;
} dl_version;

typedef struct dl_managed {
	dl_version version;
	void *context;
	void (*deleter)(struct dl_managed *);
	uint64_t flags;
	dl_tensor tensor;
} dl_managed;

/* What the capsule torch.Tensor.__dlpack_c_exchange_api__ points to. Functions return 0, or -1 with an exception. */
typedef struct {
	dl_version version;
	void *earlier;
	void *allocate;
	int (*give)(void *tensor, dl_managed **given);
	int (*take)(dl_managed *given, void **tensor);       /* a tensor over somebody's memory */
	int (*show)(void *tensor, dl_tensor *shown);         /* valid until control returns to Python */
	int (*stream)(int32_t device, int32_t id, void **stream); /* the current one */
} dl_exchange;

#endif
