package spec

import "github.com/weftgo/weft"

// IdleRoutings are those that no caller holds, in store for the next prepare on GPUs. One that a graph writes serves
// graphs only: a replay may come at any time, and would write it while an operation outside the graph uses it.
type IdleRoutings[R any] struct {
	Plain, Graphed []R
}

// Take takes one for a prepare, or a fresh one, which a capture cannot have.
func (s *IdleRoutings[R]) Take(captured bool, fresh func() (R, error)) (r R, err error) {
	from := &s.Plain
	if captured && len(s.Graphed) > 0 {
		from = &s.Graphed
	}
	switch n := len(*from); {
	case n > 0:
		r, *from = (*from)[n-1], (*from)[:n-1]
		return r, nil
	case captured:
		return r, weft.Unsupportedf("prepare: the memory of a routing cannot be allocated in a " +
			"capture; release one before, or prepare more before the capture")
	}
	return fresh()
}

// Fill puts n fresh ones in store.
func (s *IdleRoutings[R]) Fill(n int, fresh func() (R, error)) error {
	for range n {
		r, err := fresh()
		if err != nil {
			return err
		}
		s.Put(r, false)
	}
	return nil
}

// Put gives one back, which a graph writes or not.
func (s *IdleRoutings[R]) Put(r R, graphed bool) {
	if graphed {
		s.Graphed = append(s.Graphed, r)
	} else {
		s.Plain = append(s.Plain, r)
	}
}
