//go:build !linux

package launch

// Run needs Linux.
func (j *Job) Run(<-chan struct{}) (Result, error) { return Result{Code: 1, Rank: -1}, ErrNeedsLinux }

// Guard needs Linux.
func Guard() (int, error) { return 1, ErrNeedsLinux }

// GuardHosts needs Linux.
func GuardHosts() (int, error) { return 1, ErrNeedsLinux }

// Lifeline needs Linux.
func Lifeline() (<-chan struct{}, bool) { return nil, false }
