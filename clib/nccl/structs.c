/* Structs begin with their size and a magic number, and only grow. */
#include <string.h>

#include "internal.h"

ncclEpResult_t nep_struct(void *to, size_t known, const void *from, size_t least, const char *name) {
	unsigned int size, magic;
	memset(to, 0, known);
	if (from == NULL) {
		return nep_invalid("%s is NULL", name);
	}
	memcpy(&size, from, sizeof size);
	memcpy(&magic, (const char *)from + sizeof size, sizeof magic);
	if (magic != NCCL_EP_MAGIC) {
		return nep_invalid("%s has the magic number 0x%X, not 0x%X: set size to sizeof and magic to NCCL_EP_MAGIC",
						   name, magic, NCCL_EP_MAGIC);
	}
	if (size < least) {
		return nep_invalid("%s has a size of %u, and must have at least %zu: set it to sizeof", name, size, least);
	}
	memcpy(to, from, size < known ? size : known);
	return NCCL_EP_SUCCESS;
}
