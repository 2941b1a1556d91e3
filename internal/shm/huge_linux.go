package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// HugeStatus says in one line which kind of page regions get and why. It finds out by mapping a
// huge page, because a memory file of huge pages can be made, sized and sealed when there is none.
func HugeStatus() string {
	r, err := Create("weft-probe", hugePage, Options{Huge: HugeRequire})
	if err == nil {
		if err := r.Release(); err != nil {
			return fmt.Sprintf("2 MiB pages can be mapped but not unmapped: %v", err)
		}
		return fmt.Sprintf("2 MiB pages for regions of 2 MiB and up (%s of %s in the pool are free), %d KiB "+
			"pages when they run out",
			poolCount("free_hugepages"), poolCount("nr_hugepages"), os.Getpagesize()>>10)
	}
	reason := err.Error()
	switch {
	case errors.Is(err, unix.ENOMEM) && poolCount("nr_hugepages") == "0":
		reason = "the pool of 2 MiB pages is empty; vm.nr_hugepages sets its size"
	case errors.Is(err, unix.ENOMEM):
		reason = fmt.Sprintf("the pool of %s 2 MiB pages has none left for this process", poolCount("nr_hugepages"))
	case errors.Is(err, unix.EFAULT):
		reason = "the cgroup allows this process no 2 MiB pages"
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOSYS):
		reason = "the kernel has no 2 MiB pages"
	}
	return fmt.Sprintf("%d KiB pages: %s; %s", os.Getpagesize()>>10, reason, transparentStatus())
}

// transparentStatus says whether ordinary memory files may get huge pages behind the scenes.
func transparentStatus() string {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	if err != nil {
		return "the kernel has no transparent ones"
	}
	_, mode, _ := strings.Cut(string(b), "[")
	mode, _, _ = strings.Cut(mode, "]")
	switch mode {
	case "always", "within_size", "force":
		return fmt.Sprintf("transparent ones are used where the kernel can (shmem_enabled=%s)", mode)
	}
	return fmt.Sprintf("no transparent ones (shmem_enabled=%s)", mode)
}

func poolCount(name string) string {
	b, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/" + name)
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(b))
}
