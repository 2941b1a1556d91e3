package host

import (
	"context"
	"slices"

	"github.com/weftgo/weft/collective/spec"
)

// A form is a way to move data, or to reduce it on the way. Each stands in a file of its own. With each
// collective that it serves it is an algorithm: the table in tuning.go says which, and when it is chosen.
type form struct {
	name     string
	eager    bool
	supports func(q *spec.Request) bool
	run      func(ctx context.Context, c *call) error

	names [spec.Collectives]string // of its algorithms
}

// algorithm is a form of one collective.
type algorithm struct {
	spec.Algorithm
	form *form
}

// algorithms is the registry: the forms of the tuning table.
var algorithms = func() (all []algorithm) {
	for kind := range spec.Collectives {
		for i, p := range preferences[kind] {
			if slices.ContainsFunc(preferences[kind][:i], func(q preference) bool { return q.form == p.form }) {
				continue
			}
			name := kind.String() + "/" + p.form.name
			p.form.names[kind] = name
			all = append(all, algorithm{spec.Algorithm{
				Name: name, Collective: kind, Eager: p.form.eager,
				Supports: func(q spec.Request) bool { return p.form.supports(&q) },
			}, p.form})
		}
	}
	return all
}()

// Algorithms lists all algorithms.
func Algorithms() []spec.Algorithm {
	all := make([]spec.Algorithm, len(algorithms))
	for i, a := range algorithms {
		all[i] = a.Algorithm
	}
	return all
}

func algorithmNamed(name string) *algorithm {
	for i := range algorithms {
		if algorithms[i].Name == name {
			return &algorithms[i]
		}
	}
	return nil
}

func always(*spec.Request) bool { return true }
