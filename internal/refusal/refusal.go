// Package refusal carries a layer's refusal down to the ranks' first comparison of what they ask for.
//
// A layer above, as the interface in C, may find an argument wrong that it cannot pass on. If it returned then, the
// other ranks would wait for this one. So it makes the call all the same, with the reason in the context: the
// communicator then passes the reason where it compares arguments, and every rank returns it.
package refusal

import (
	"context"
	"strings"
)

type key struct{}

// With is a context for a call that is refused for a reason, if there is one.
func With(ctx context.Context, why error) context.Context {
	if why == nil {
		return ctx
	}
	return context.WithValue(ctx, key{}, why)
}

// Of is the reason for which a call with this context is refused, or nil.
func Of(ctx context.Context) error {
	why, _ := ctx.Value(key{}).(error)
	return why
}

// There is the error with which a rank answers another one's refusal of an operation: its words, without those that
// the answer says anyway, and its kind, which the error wraps.
func There(kind error, op, words string) error {
	for begins := true; begins; {
		begins = false
		for _, said := range [...]string{kind.Error() + ": ", op + ": "} {
			if rest, ok := strings.CutPrefix(words, said); ok {
				words, begins = rest, true
			}
		}
	}
	return &there{words: words, kind: kind}
}

type there struct {
	words string
	kind  error
}

func (e *there) Error() string { return "refused there: " + e.words }
func (e *there) Unwrap() error { return e.kind }
