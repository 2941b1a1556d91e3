package weft

import "context"

// Work is an operation in split phases that was sent and not yet completed.
type Work struct {
	finish func(ctx context.Context) error
	done   bool
	err    error
}

// NewWork makes a Work whose Wait runs finish once. It is for packages that implement operations.
func NewWork(finish func(ctx context.Context) error) *Work { return &Work{finish: finish} }

// Wait completes the operation. Further calls return the same result. A Work belongs to the
// goroutine that started it.
func (w *Work) Wait(ctx context.Context) error {
	if !w.done {
		w.done = true
		w.err = w.finish(ctx)
	}
	return w.err
}

// String says whether the operation was completed, and its error.
func (w *Work) String() string {
	switch {
	case !w.done:
		return "work, to be waited for"
	case w.err != nil:
		return "work, failed: " + w.err.Error()
	}
	return "work, done"
}

// Done reports whether Wait has been called.
func (w *Work) Done() bool { return w.done }
