package launch

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// openLedger makes the file that records which ranks have ended: see [bootstrap.EndedVariable]. It
// is memory of this process, so it ends with it. It needs no descriptor in the ranks, which
// programs between them and this process may close.
func openLedger(ranks int) (*os.File, error) {
	fd, err := unix.MemfdCreate("weft-run-ended", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "ended ranks")
	_, err = fmt.Fprintln(f, ranks)
	return f, err
}

// ledgerPath is where processes of the same user find the file.
func ledgerPath(f *os.File) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), f.Fd()) }

// record writes the ranks that have ended since its last call. Of ranks that were found dead
// together, one that crashed comes first: it may be why the others ended.
func (s *supervisor) record() {
	if len(s.buried) == 0 {
		return
	}
	order := func(r *rank) int {
		if r.crashed() {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(s.buried, func(a, b *rank) int { return cmp.Compare(order(a), order(b)) })
	var lines bytes.Buffer
	for _, r := range s.buried {
		fmt.Fprintf(&lines, "%d %s\n", r.index, r.reason())
	}
	s.buried = nil
	// Ranks that do not get it find out by their deadline.
	_, _ = s.ledger.Write(lines.Bytes())
}
