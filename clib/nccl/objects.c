/*
 * Callers hold numbers, which point nowhere: magic bit 1 | kind 3 | generation 28 | slot 32. Handles are numbers that
 * a table maps to objects, so the library refuses a destroyed or wrong one without touching memory.
 */
#include <stdlib.h>

#include "internal.h"

static const char *const names[] = {"ncclEpGroup_t", "ncclEpHandle_t"};

typedef struct slot {
	void *object; /* NULL: free */
	uint64_t id;
	uint32_t generation;
} slot;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static slot *slots;
static size_t count;
static size_t first_free; /* no slot before it is free */

/* Whether a group stands on a communicator, with the lock held. */
static bool taken(const void *comm) {
	for (size_t i = 0; i < count; i++) {
		if (slots[i].object != NULL && slots[i].id >> 60 == (8 | NEP_GROUP) &&
			((nep_group *)slots[i].object)->given == comm) {
			return true;
		}
	}
	return false;
}

ncclEpResult_t nep_check_free(const void *comm) {
	pthread_mutex_lock(&lock);
	bool found = taken(comm);
	pthread_mutex_unlock(&lock);
	if (found) {
		return nep_misused("the communicator has a group: call ncclEpGroupDestroy before another "
						   "ncclEpCreateGroup, or use a communicator of its own");
	}
	return NCCL_EP_SUCCESS;
}

/* Finds a slot that is free, or makes more, with the lock held. */
static slot *find_free(void) {
	while (first_free < count && slots[first_free].object != NULL) {
		first_free++;
	}
	if (first_free == count) {
		size_t more = count == 0 ? 64 : 2 * count;
		slot *grown = more > UINT32_MAX ? NULL : realloc(slots, more * sizeof *slots);
		if (grown == NULL) {
			return NULL;
		}
		slots = grown;
		for (; count < more; count++) {
			slots[count] = (slot){0};
		}
	}
	return &slots[first_free];
}

ncclEpResult_t nep_add(nep_kind kind, void *object, uint64_t *id) {
	pthread_mutex_lock(&lock);
	bool late = kind == NEP_GROUP && taken(((nep_group *)object)->given); /* another thread has made one meanwhile */
	slot *s = late ? NULL : find_free();
	if (s != NULL) {
		s->generation = (s->generation + 1) & 0xFFFFFFF;
		s->object = object;
		s->id = UINT64_C(1) << 63 | (uint64_t)kind << 60 | (uint64_t)s->generation << 32 | first_free;
		*id = s->id;
	}
	pthread_mutex_unlock(&lock);
	if (late) {
		return nep_check_free(((nep_group *)object)->given);
	}
	return s != NULL ? NCCL_EP_SUCCESS
					 : nep_fail(NCCL_EP_SYSTEM_ERROR, "there is no memory for another %s", names[kind]);
}

/* The slot of a number, with the lock held. */
static slot *find(uint64_t id) {
	size_t i = id & UINT32_MAX;
	return i < count && slots[i].object != NULL && slots[i].id == id ? &slots[i] : NULL;
}

void nep_remove(uint64_t id) {
	pthread_mutex_lock(&lock);
	slot *s = find(id);
	if (s != NULL) {
		s->object = NULL;
		first_free = (size_t)(s - slots) < first_free ? (size_t)(s - slots) : first_free;
	}
	pthread_mutex_unlock(&lock);
}

static ncclEpResult_t refuse(nep_kind kind, uint64_t id) {
	if (id == 0) {
		return nep_invalid("the %s is NULL", names[kind]);
	}
	if (id >> 60 == (8 | (unsigned)kind)) {
		return nep_invalid("the %s was destroyed before, or never made", names[kind]);
	}
	return nep_invalid("0x%llx is no %s; pass a handle that a call of this process returned", (unsigned long long)id,
					   names[kind]);
}

/* The gate is taken under the lock: a call that destroys a group holds its gate, and removes its number before it
 * frees it.
 */
static ncclEpResult_t enter(nep_kind kind, uint64_t id, void **object) {
	pthread_mutex_lock(&lock);
	slot *s = id >> 60 == (8 | (unsigned)kind) ? find(id) : NULL;
	bool entered = false;
	if (s != NULL) {
		*object = s->object;
		nep_group *group = kind == NEP_GROUP ? s->object : ((nep_handle *)s->object)->group;
		entered = pthread_mutex_trylock(&group->gate) == 0;
	}
	pthread_mutex_unlock(&lock);
	if (s == NULL) {
		return refuse(kind, id);
	}
	if (!entered) {
		return nep_misused("another thread is inside a call on this group; calls on a group take turns");
	}
	return NCCL_EP_SUCCESS;
}

ncclEpResult_t nep_enter_group(ncclEpGroup_t id, nep_group **group) {
	return enter(NEP_GROUP, (uint64_t)(uintptr_t)id, (void **)group);
}

ncclEpResult_t nep_enter(ncclEpHandle_t id, nep_handle **handle) {
	return enter(NEP_HANDLE, (uint64_t)(uintptr_t)id, (void **)handle);
}

void nep_leave(nep_group *group) { pthread_mutex_unlock(&group->gate); }
