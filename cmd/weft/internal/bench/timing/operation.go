package timing

import "fmt"

// Operation is a timed operation on one rank. Every rank has the same ones.
type Operation struct {
	Name  string
	Bytes Bytes
	SMs   int // on GPUs: that its kernel runs on
	// Renew makes the operands of the next run, before all ranks meet. If the run will be checked,
	// they differ from the last ones: only that run can produce the checked results. Nil: nothing.
	Renew func(checked bool) error
	// Run does the operation on the host, or enqueues it on a GPU. If it will be checked, its
	// results are kept until Check.
	Run func(checked bool) error
	// Check compares the results of the last run, when it has ended, and releases them. It returns
	// a *WrongError if that is wrong; any other error ends the measurement. Nil: nothing to
	// compare.
	Check func() error
}

// Bytes are those of an operation on one rank, or in the mean over ranks.
type Bytes struct {
	Wire    float64 // that leave the rank for another
	Logical float64 // one row per token and rank visited, the own included
	DeepEP  float64 // one row per selection
	Moved   float64 // on the host: read from where they are, and written to where they go
}

// WrongError describes an error in an operation's output, of so many elements where they are counted.
type WrongError struct {
	Text     string
	Elements int64
}

func (e *WrongError) Error() string { return e.Text }

// Wrongf is a *WrongError.
func Wrongf(format string, args ...any) error { return &WrongError{Text: fmt.Sprintf(format, args...)} }

// Verdict is the first error.
type Verdict struct {
	problem  string
	elements int64 // of it
}

// Take keeps a WrongError, and returns any other error.
func (v *Verdict) Take(err error) error {
	w, ok := err.(*WrongError)
	if !ok {
		return err
	}
	if v.problem == "" {
		v.problem, v.elements = w.Text, w.Elements
	}
	return nil
}

func (o *Operation) renew(checked bool) error {
	if o.Renew == nil {
		return nil
	}
	return o.Renew(checked)
}

func (o *Operation) check(v *Verdict) error {
	if o.Check == nil {
		return nil
	}
	return v.Take(o.Check())
}
