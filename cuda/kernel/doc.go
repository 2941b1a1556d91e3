// Package kernel turns kernels' sources into cubins, once: one process of a host compiles, the
// others and all later ones read what it wrote.
//
//	cache := kernel.New(kernel.Options{})
//	cubins, err := cache.LoadAll(ctx, []kernel.Spec{
//		{Name: "dispatch", Source: dispatch, Kernels: []string{"layer::dispatch"}, Arch: "sm_90a"},
//		{Name: "combine", Source: combine, Headers: headers, Kernels: []string{"layer::combine"}, Arch: "sm_90a"},
//	})
//	module, err := context.LoadModule(cubins[0].Image())
//	function, err := module.Function(cubins[0].Symbol("layer::dispatch"))
//
// A [Spec] is plain data and says all that decides about the code; its [Key] is a hash over that. A
// [Cubin] is the code, as an immutable value. Compiling belongs where communicators and handles are
// made, never inside an operation.
//
// # Data flow
//
//	Load ── in memory? ── in WEFT_CACHE? ── in the user's cache? ── lock ── there by now? ── compile ── write ── unlock
//	             │               │                   │         │                │
//	           done            done                done      busy: pause,     done
//	                                                         look again
//
// Requests of one process for the same key share one search, which goes on as long as one of them
// waits. The compiler is opened when the first kernel must be compiled, so a host with a full cache
// needs none.
//
// # Where cubins are kept
//
// [Options].Dir, else WEFT_CACHE_DIR, else weft/kernels in the user's cache directory, is read and
// written. [Options].ReadOnly, else the directories in WEFT_CACHE, are looked at before it and
// never written: they are for caches that [Cache.Fill] made, on this machine or on another.
//
// A GPU will run a cubin, so a cache trusts only files that no other user can have written. A
// directory must belong to this user or to root, and neither its group nor others may write in it;
// the same holds for each entry, and neither may be a symbolic link. The cache checks the open file,
// not its name, whenever it reads an entry.
//
// An entry names its content and its key, has the symbols of its kernels, and ends with a SHA-256 of
// all the rest. The cache refuses an entry that fails any of this: it logs the reason, compiles the
// kernel anew, and replaces the entry if it lies in the user's cache. On Windows, where files have
// no such owner, only the checksum is checked.
//
// The cache is a help and not a need. If it cannot be written (there is no home, the file system is
// read-only, the disk is full, the directory is not trusted), this is logged once, and kernels are
// compiled into memory.
//
// # Why it is right
//
// An entry is written under another name, synced and renamed. So a reader that opens an entry's
// name reads a whole entry, whenever the writer dies. The files of a dead writer have names that
// are never read. The next process that compiles the key removes them, or after a day any process
// that compiles. Readers take no lock.
//
// Compiling takes the key's lock, which is flock's on a file of its own that is never removed, so
// that all mean the same file. The holder looks for the entry once more after it has the lock.
// Every holder before it has either renamed its entry before it unlocked, and then the look finds
// it, or has failed. So a key is compiled again only if no process before could write it. The
// operating system releases the locks of a dead process.
//
// A process that finds the lock taken pauses, for 1 ms at first and never more than 16, and tries
// again. A blocking flock would be no better: Go's signal handlers restart it, so a wait in it
// could not end with its context while the holder is stopped. After a minute the holder is taken
// for stopped, and the kernel is compiled without the lock; so it is where a file system has no
// locks, and on Windows. Two writers of a key do no harm: each renames a whole entry, and readers
// get one of the two.
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
