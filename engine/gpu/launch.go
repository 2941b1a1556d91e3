package gpu

import "github.com/weftgo/weft/cuda"

// Launch is a kernel ready to start, whose only argument is an A: a struct of the same layout as
// the kernel's parameter. Args points at the argument in place: callers change it there from call
// to call, and a start allocates nothing. A started kernel has its own copy.
//
// A Launch is for one goroutine at a time. A kernel that meets peers is started by its [Lane].
type Launch[A any] struct {
	*cuda.Launch
	Args *A
}

// NewLaunch lays out a launch with the argument as it is to begin with.
func NewLaunch[A any](f *cuda.Function, config cuda.LaunchConfig, args A) (l Launch[A], err error) {
	if l.Launch, err = f.Prepare(config, args); err == nil {
		l.Args, err = cuda.Arg[A](l.Launch, 0)
	}
	return l, err
}

// For is a launch of another kernel of the same parameter, in the shape of this one, with which it
// shares the argument.
func (l Launch[A]) For(f *cuda.Function) (Launch[A], error) {
	other, err := l.Launch.For(f)
	return Launch[A]{other, l.Args}, err
}
