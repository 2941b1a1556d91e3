// A libibverbs and a libmlx5 for tests: cards that are described to it, whose queue pairs lie in memory as libmlx5 lays
// them, and that somebody else serves. It refuses calls in the wrong order and with the wrong arguments, as kernel and
// libraries do, and counts what was not given back. The structs are this file's own; testdata/abi.c of the package
// that it tests has those of the headers.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { CARDS = 8, GIDS = 8, PAGE = 4096, ENTRY = 64, RECORD = 64, REGISTERS = 2 };
enum { ACTIVE = 4, DOWN = 1, ETHERNET = 2 };
enum { RESET, INIT, RECEIVE, SEND };
enum { LOCAL_WRITE = 1, REMOTE_WRITE = 2, REMOTE_ATOMIC = 8, RELAXED = 1 << 20 };

struct gid {
	uint8_t bytes[16];
	uint32_t kind;
};

// What the caller sees of each object lies first, at the offsets of the real ones.
struct card {
	void *ops[2];
	int32_t node, transport;
	char name[64], dev_name[64], dev_path[256], path[256];
	// The rest is this file's own.
	int mlx5, link, state, mtu, lid, gids;
	struct gid gid[GIDS];
};

struct context {
	struct card *card;
	char ops[320]; // and what else there is
	uint8_t *records, *registers;
	int record, reg; // used of the present page
	int objects;
};

struct domain {
	struct context *context;
	int objects;
};

struct memory {
	struct context *context;
	struct domain *domain;
	void *address;
	size_t length;
	uint32_t handle, local, remote;
};

struct completions {
	struct context *context;
	void *channel, *of;
	uint32_t handle;
	int32_t count;
	char rest[128];
	uint8_t *at, *record;
	int users;
};

struct queue {
	struct context *context;
	void *of;
	struct domain *domain;
	struct completions *send, *receive;
	void *shared;
	uint32_t handle, number;
	int32_t state, kind;
	char rest[128];
	uint8_t *buffer, *sends, *record, *reg;
	size_t bytes;
	uint32_t entries, peer;
	struct queue *next;
};

struct port {
	int32_t state, max_mtu, mtu, gids;
	uint32_t caps, message, bad, bad_queue;
	uint16_t keys, lid, manager;
	uint8_t lmc, lanes, level, timeout, reply, width, speed, physical, link, flags;
};

struct entry {
	uint8_t gid[16];
	uint32_t index, port, kind, device;
};

struct cap {
	uint32_t sends, receives, send_parts, receive_parts, inlined;
};

struct init {
	void *of;
	struct completions *send, *receive;
	void *shared;
	struct cap cap;
	int32_t kind, all;
};

struct vector {
	uint8_t gid[16];
	uint32_t flow;
	uint8_t index, hops, class, pad;
	uint16_t lid;
	uint8_t level, bits, rate, global, port, pad2;
};

struct attributes {
	int32_t state, current, mtu, migration;
	uint32_t key, receive_number, send_number, peer, access;
	struct cap cap;
	struct vector address, other;
	uint16_t partition, other_partition;
	uint8_t notify, draining, atomics, peer_atomics, timer, port, timeout, retries, not_ready;
};

struct ring {
	void *at;
	uint32_t count, stride;
};

struct object {
	struct {
		struct queue *in;
		struct {
			void *record;
			struct ring send, receive;
			void *reg;
			uint32_t half;
			uint64_t mask;
		} *out;
	} queue;
	struct {
		struct completions *in;
		struct {
			void *at, *record;
			uint32_t count, size;
			void *reg;
			uint32_t number;
			uint64_t mask;
		} *out;
	} completions;
};

// A request is what whoever serves the queue pairs is asked for. Go: request.
struct request {
	uint32_t kind, local, remote, access, number, entries, completions, pad;
	uint64_t address, bytes, sends, done, record, consumer, reg;
};

enum { REGISTER = 1, DEREGISTER, CONNECT, DISCONNECT };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct card cards[CARDS];
static int card_count, live, no_kernel;
static uint32_t last_key = 0x1000, last_number = 0x100;
static struct queue *queues;
static struct {
	char call[64];
	int error, in;
} faults[16];
static struct request asked;
static enum { IDLE, ASKED, TAKEN, ANSWERED } stage;
static int answer;
static int stride = ENTRY, completion_bytes = 64, grow = 4, fewer;

// faulty is the error that a call is to fail with, or 0.
static int faulty(const char *call) {
	for (unsigned i = 0; i < sizeof faults / sizeof *faults; i++) {
		if (faults[i].error != 0 && strcmp(faults[i].call, call) == 0 &&
			__atomic_fetch_sub(&faults[i].in, 1, __ATOMIC_RELAXED) <= 0) { // ranks call side by side
			errno = faults[i].error;
			return errno;
		}
	}
	return 0;
}

// FAULT gives what a call gives that fails and has the reason in errno; FAILS gives the reason.
#define FAULT(call, result) \
	if (faulty(call) != 0) return result
#define FAILS(call)             \
	int failed = faulty(call); \
	if (failed != 0) return failed

static void deadline(struct timespec *t, long ms) {
	clock_gettime(CLOCK_REALTIME, t);
	t->tv_sec += ms / 1000;
	t->tv_nsec += ms % 1000 * 1000000;
	if (t->tv_nsec >= 1000000000) t->tv_sec++, t->tv_nsec -= 1000000000;
}

// ask has a request served, and gives an error.
static int ask(struct request r) {
	struct timespec t;
	deadline(&t, 60000);
	pthread_mutex_lock(&lock);
	int failed = 0;
	while (stage != IDLE && failed == 0) failed = pthread_cond_timedwait(&changed, &lock, &t);
	if (failed == 0) {
		asked = r, stage = ASKED;
		pthread_cond_broadcast(&changed);
		while (stage != ANSWERED && failed == 0) failed = pthread_cond_timedwait(&changed, &lock, &t);
		if (failed == 0) failed = answer;
		stage = IDLE;
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
	return failed;
}

// take waits some milliseconds for a request.
int fake_take(struct request *r, int ms) {
	struct timespec t;
	deadline(&t, ms);
	pthread_mutex_lock(&lock);
	while (stage != ASKED && pthread_cond_timedwait(&changed, &lock, &t) == 0);
	int some = stage == ASKED;
	if (some) *r = asked, stage = TAKEN;
	pthread_mutex_unlock(&lock);
	return some;
}

void fake_answer(int error) {
	pthread_mutex_lock(&lock);
	if (stage == TAKEN) answer = error, stage = ANSWERED;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

void fake_card(const char *name, const char *path, int mlx5, int link, int active, int mtu, int lid) {
	struct card *c = &cards[card_count++];
	strncpy(c->name, name, sizeof c->name - 1);
	strncpy(c->path, path, sizeof c->path - 1);
	c->mlx5 = mlx5, c->link = link, c->state = active ? ACTIVE : DOWN, c->mtu = mtu, c->lid = lid;
}

// fake_gid adds an address to the last card. All of it zero: that row of the table is empty.
void fake_gid(int kind, const uint8_t *bytes) {
	struct card *c = &cards[card_count - 1];
	c->gid[c->gids].kind = kind;
	memcpy(c->gid[c->gids++].bytes, bytes, 16);
}

// fake_fail has a call fail, after so many that do not; error 0 ends that.
void fake_fail(const char *call, int error, int after) {
	unsigned n = sizeof faults / sizeof *faults, at = 0;
	while (at < n && strcmp(faults[at].call, call) != 0) at++;
	for (unsigned i = 0; i < n && at == n; i++) {
		if (faults[i].error == 0) at = i;
	}
	strncpy(faults[at].call, call, sizeof faults[at].call - 1);
	faults[at].error = error, faults[at].in = after;
}

// fake_shape changes what queue pairs are like: bytes between entries and of completions, how many entries there are
// for one that was asked for, and whether completion queues are smaller than asked for.
void fake_shape(int entry, int completion, int more, int small) {
	stride = entry, completion_bytes = completion, grow = more, fewer = small;
}

void fake_kernel(int there) { no_kernel = !there; }

int fake_live(void) { return __atomic_load_n(&live, __ATOMIC_RELAXED); }

static void *object(size_t bytes) {
	__atomic_add_fetch(&live, 1, __ATOMIC_RELAXED);
	return calloc(1, bytes);
}

static int drop(void *o) {
	__atomic_sub_fetch(&live, 1, __ATOMIC_RELAXED);
	free(o);
	return 0;
}

struct card **ibv_get_device_list(int32_t *count) {
	FAULT("ibv_get_device_list", NULL);
	if (no_kernel) {
		errno = ENOSYS;
		return NULL;
	}
	struct card **list = object((CARDS + 1) * sizeof *list);
	for (int i = 0; i < card_count; i++) list[i] = &cards[i];
	*count = card_count;
	return list;
}

void ibv_free_device_list(struct card **list) { drop(list); }

const char *ibv_get_device_name(struct card *c) { return c->name; }

uint8_t mlx5dv_is_supported(struct card *c) { return c->mlx5 != 0; }

struct context *ibv_open_device(struct card *c) {
	FAULT("ibv_open_device", NULL);
	struct context *x = object(sizeof *x);
	x->card = c, x->record = PAGE / RECORD, x->reg = REGISTERS;
	return x;
}

int ibv_close_device(struct context *x) {
	FAULT("ibv_close_device", -1);
	return x->objects != 0 ? (errno = EBUSY, -1) : drop(x);
}

int ibv_query_port(struct context *x, uint8_t n, struct port *p) {
	FAILS("ibv_query_port");
	if (n != 1) return EINVAL;
	struct card *c = x->card;
	memset(p, 0, 48); // as much as the exported function knows
	p->state = c->state, p->max_mtu = 5, p->mtu = c->mtu, p->gids = c->gids, p->lid = c->lid, p->link = c->link;
	return 0;
}

int _ibv_query_gid_ex(struct context *x, uint32_t port, uint32_t i, struct entry *e, uint32_t flags, size_t size) {
	FAILS("ibv_query_gid_ex");
	struct card *c = x->card;
	if (port != 1 || (int)i >= c->gids || flags != 0 || size != sizeof *e) return EINVAL;
	static const uint8_t zero[16];
	if (memcmp(c->gid[i].bytes, zero, 16) == 0) return ENODATA;
	memset(e, 0, sizeof *e);
	memcpy(e->gid, c->gid[i].bytes, 16);
	e->index = i, e->port = port, e->kind = c->gid[i].kind;
	return 0;
}

struct domain *ibv_alloc_pd(struct context *x) {
	FAULT("ibv_alloc_pd", NULL);
	struct domain *d = object(sizeof *d);
	d->context = x, x->objects++;
	return d;
}

int ibv_dealloc_pd(struct domain *d) {
	FAILS("ibv_dealloc_pd");
	if (d->objects != 0) return EBUSY;
	d->context->objects--;
	return drop(d);
}

static struct memory *enter(struct domain *d, void *at, size_t bytes, int access) {
	if (bytes == 0 || (access & ~(LOCAL_WRITE | REMOTE_WRITE | REMOTE_ATOMIC)) != 0 ||
		((access & (REMOTE_WRITE | REMOTE_ATOMIC)) != 0 && (access & LOCAL_WRITE) == 0)) {
		errno = EINVAL;
		return NULL;
	}
	struct memory *m = object(sizeof *m);
	m->context = d->context, m->domain = d, m->address = at, m->length = bytes;
	pthread_mutex_lock(&lock);
	m->local = ++last_key, m->remote = ++last_key;
	pthread_mutex_unlock(&lock);
	int failed = ask((struct request){.kind = REGISTER, .local = m->local, .remote = m->remote, .access = access,
									  .address = (uintptr_t)at, .bytes = bytes});
	if (failed != 0) {
		drop(m);
		errno = failed;
		return NULL;
	}
	d->objects++;
	return m;
}

struct memory *ibv_reg_mr(struct domain *d, void *at, size_t bytes, int access) {
	FAULT("ibv_reg_mr", NULL);
	return enter(d, at, bytes, access);
}

#ifndef OLD
// The descriptor must be one. Its memory is where the addresses say, since all of it is this process's.
struct memory *ibv_reg_dmabuf_mr(struct domain *d, uint64_t offset, size_t bytes, uint64_t address, int fd,
								 int access) {
	FAULT("ibv_reg_dmabuf_mr", NULL);
	off_t end = lseek(fd, 0, SEEK_END);
	if (end < 0) return NULL;
	if ((uint64_t)end < offset + bytes) {
		errno = EINVAL;
		return NULL;
	}
	return enter(d, (void *)(uintptr_t)address, bytes, access);
}
#endif

int ibv_dereg_mr(struct memory *m) {
	FAILS("ibv_dereg_mr");
	failed = ask((struct request){.kind = DEREGISTER, .local = m->local, .remote = m->remote});
	if (failed != 0) return failed;
	m->domain->objects--;
	return drop(m);
}

static void *pages(size_t bytes) {
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static size_t whole(size_t bytes) { return (bytes + PAGE - 1) & ~(size_t)(PAGE - 1); }

// record is the next of a page that all queues of a context share. Such pages stay.
static uint8_t *record(struct context *x) {
	if (x->record == PAGE / RECORD) x->records = pages(PAGE), x->record = 0;
	return x->records + RECORD * x->record++;
}

static uint32_t power(uint32_t n) {
	uint32_t p = 1;
	while (p < n) p *= 2;
	return p;
}

struct completions *ibv_create_cq(struct context *x, int count, void *of, void *channel, int on) {
	FAULT("ibv_create_cq", NULL);
	if (count < 1 || channel != NULL || on != 0) {
		errno = EINVAL;
		return NULL;
	}
	struct completions *c = object(sizeof *c);
	c->context = x, c->of = of, c->count = power(count + 1);
	if (fewer-- > 0) c->count = c->count > 8 ? c->count / 8 : 1;
	c->at = pages(whole(64 * c->count)), c->record = record(x);
	for (int i = 0; i < c->count; i++) c->at[64 * i + 63] = 0xF1;
	x->objects++;
	return c;
}

int ibv_destroy_cq(struct completions *c) {
	FAILS("ibv_destroy_cq");
	if (c->users != 0) return EBUSY;
	munmap(c->at, whole(64 * c->count));
	c->context->objects--;
	return drop(c);
}

struct queue *ibv_create_qp(struct domain *d, struct init *i) {
	FAULT("ibv_create_qp", NULL);
	if (i->kind != 2 || i->send == NULL || i->receive == NULL || i->shared != NULL || i->all != 0 || i->cap.sends == 0 ||
		i->cap.send_parts == 0) {
		errno = EINVAL;
		return NULL;
	}
	struct queue *q = object(sizeof *q);
	q->context = d->context, q->domain = d, q->send = i->send, q->receive = i->receive, q->kind = i->kind;
	// The receive queue comes first, in the same pages.
	q->entries = power(i->cap.sends * grow), q->bytes = whole(64 + ENTRY * q->entries);
	q->buffer = pages(q->bytes), q->sends = q->buffer + 64, q->record = record(d->context);
	struct context *x = d->context;
	if (x->reg == REGISTERS) x->registers = pages(PAGE), x->reg = 0;
	q->reg = x->registers + 0x800 + 0x200 * x->reg++;
	q->send->users++, d->objects++;
	pthread_mutex_lock(&lock);
	q->number = ++last_number, q->next = queues, queues = q;
	pthread_mutex_unlock(&lock);
	return q;
}

int ibv_destroy_qp(struct queue *q) {
	FAILS("ibv_destroy_qp");
	if (q->state == SEND) {
		failed = ask((struct request){.kind = DISCONNECT, .number = q->number});
		if (failed != 0) return failed;
	}
	pthread_mutex_lock(&lock);
	struct queue **at = &queues;
	while (*at != q) at = &(*at)->next;
	*at = q->next;
	pthread_mutex_unlock(&lock);
	munmap(q->buffer, q->bytes);
	q->send->users--, q->domain->objects--;
	return drop(q);
}

// reaches says whether an address vector leads to the card of a queue pair of this process.
static int reaches(struct queue *q, struct vector *v, uint32_t number) {
	pthread_mutex_lock(&lock);
	struct queue *peer = queues;
	while (peer != NULL && peer->number != number) peer = peer->next;
	pthread_mutex_unlock(&lock);
	struct card *own = q->context->card;
	if (peer == NULL || v->port != 1) return 0;
	struct card *c = peer->context->card;
	if (v->global) {
		if (v->hops == 0 || v->index >= own->gids) return 0;
		for (int i = 0; i < c->gids; i++) {
			if (memcmp(c->gid[i].bytes, v->gid, 16) == 0 && c->gid[i].kind == own->gid[v->index].kind) return 1;
		}
		return 0;
	}
	return c->link != ETHERNET && v->lid != 0 && v->lid == c->lid;
}

int ibv_modify_qp(struct queue *q, struct attributes *a, int mask) {
	FAILS("ibv_modify_qp");
	static const int masks[] = {0, 0x39, 0x129181, 0x12E01};
	if (a->state != q->state + 1 || a->state > SEND || mask != masks[a->state]) return EINVAL;
	switch (a->state) {
	case INIT:
		if (a->port != 1 || (a->access & REMOTE_WRITE) == 0) return EINVAL;
		break;
	case RECEIVE:
		if (a->mtu < 1 || a->mtu > q->context->card->mtu || a->peer_atomics == 0) return EINVAL;
		if (!reaches(q, &a->address, a->peer)) return EHOSTUNREACH;
		q->peer = a->peer;
		break;
	case SEND:
		if (a->timeout == 0 || a->timeout > 31 || a->retries > 7 || a->not_ready > 7) return EINVAL;
		failed = ask((struct request){.kind = CONNECT, .number = q->number, .entries = q->entries,
									  .completions = q->send->count, .sends = (uintptr_t)q->sends,
									  .done = (uintptr_t)q->send->at, .record = (uintptr_t)q->record,
									  .consumer = (uintptr_t)q->send->record, .reg = (uintptr_t)q->reg});
		if (failed != 0) return failed;
	}
	q->state = a->state;
	return 0;
}

int mlx5dv_init_obj(struct object *o, uint64_t kinds) {
	FAILS("mlx5dv_init_obj");
	if (kinds != 3 || o->queue.out->mask != 0 || o->completions.out->mask != 0) return ENOTSUP;
	struct queue *q = o->queue.in;
	o->queue.out->record = q->record;
	o->queue.out->send.at = q->sends, o->queue.out->send.count = q->entries, o->queue.out->send.stride = stride;
	o->queue.out->receive.at = q->buffer, o->queue.out->receive.count = 1, o->queue.out->receive.stride = 16;
	o->queue.out->reg = q->reg, o->queue.out->half = 256;
	struct completions *c = o->completions.in;
	o->completions.out->at = c->at, o->completions.out->record = c->record;
	o->completions.out->count = c->count, o->completions.out->size = completion_bytes;
	return 0;
}
