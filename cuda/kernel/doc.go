// Package kernel turns kernels' sources into cubins, once: one process of a host compiles, the
// others and all later ones read what it wrote.
//
//	cache := kernel.New(kernel.Options{})
//	cubins, err := cache.LoadAll(ctx, []kernel.Spec{
//		{Name: "dispatch", Source: dispatch, Headers: headers, Defines: defines, Kernels: []string{"layer::dispatch"}, Arch: "sm_90a"},
//		{Name: "combine", Source: combine, Headers: headers, Defines: defines, Kernels: []string{"layer::combine"}, Arch: "sm_90a"},
//	})
//	module, err := context.LoadModule(cubins[0].Image())
//	function, err := module.Function(cubins[0].Symbol("layer::dispatch"))
//
// A [Spec] is plain data and says all that decides about the code; its [Key] is a hash over that. A
// [Cubin] is the code, and a value that nobody can change. Compiling belongs where communicators
// and handles are made, never inside an operation.
//
// # Data flow
//
//	Load ── in memory? ── in WEFT_CACHE? ── in the user's cache? ── lock ── there by now? ── compile ── write ── unlock
//	             │               │                   │         │                │
//	           done            done                done      busy: pause,     done
//	                                                         look again
//
// Requests of one process for the same key share one search, which goes on as long as one of them
// waits. The compiler is opened when the first kernel must be compiled, so a host whose cache is
// full needs none.
//
// # Where cubins are kept
//
// [Options].Dir, else WEFT_CACHE_DIR, else weft/kernels in the user's cache directory, is read and
// written. [Options].ReadOnly, else the directories in WEFT_CACHE, are looked at before it and
// never written: they are for caches that [Cache.Fill] made, on this machine or on another.
//
// A cubin is code that the GPU will run, so it is believed only if nobody else can have put it
// there. A directory must belong to this user or to root, and neither its group nor others may
// write in it; the same holds for each entry, and neither may be a symbolic link. This is asked
// whenever an entry is read, of the open file and not of its name. An entry says what it is and for
// which key, has the symbols that its kernels are found by, and ends with a SHA-256 of all the
// rest. One that fails any of this is refused: it is logged, compiled anew, and replaced if it lies
// in the user's cache. On Windows, where files have no such owner, only the checksum is left.
//
// The cache is a help and not a need. Where it cannot be written, because there is no home, the
// file system is read-only, the disk is full or the directory is not to be trusted, this is logged
// once, and kernels are compiled into memory.
//
// # Why it is right
//
// An entry is written under another name, synced and renamed. So whoever opens an entry's name
// reads a whole entry, whenever the writer dies; what a dead writer has left lies under a name that
// is never read, and is removed by the next one who compiles the key, or after a day by whoever
// compiles anything. Readers take no lock.
//
// Compiling takes the key's lock, which is flock's on a file of its own that is never removed, so
// that all mean the same file. The holder looks for the entry once more after it has the lock.
// Every holder before it has either renamed its entry before it unlocked, and then the look finds
// it, or has failed. So a key is compiled again only if no one before could write it. The operating
// system unlocks what a dead process held.
//
// Who finds the lock taken pauses, for 1 ms at first and never more than 16, and looks again. A
// blocking flock would be no better: Go's signal handlers restart it, so a wait in it could not end
// with its context while the holder is stopped. After a minute the holder is taken for stopped, and
// the kernel is compiled without the lock; so it is where a file system has no locks, and on
// Windows. Two writers of a key do no harm: each renames a whole entry, and readers get the one or
// the other.
//
// A search holds one lock at most, and waits for no other process while it does, so processes
// cannot wait for each other in a circle. Only searches that work, not those that pause, count
// against [Options].Parallel. So of eight processes that want the same kernels, each soon compiles
// another one.
//
// # Names
//
// An entry is <key>.cubin, its lock <key>.lock, and <key>.<random>.tmp is being written.
// Directories are made with mode 0700 and entries with 0600; Fill makes 0755 and 0644, less the
// umask, because its directories are to be shared.
package kernel
