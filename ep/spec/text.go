package spec

import (
	"fmt"
	"reflect"
	"strings"
)

// String says the members that are not zero, with the layout and the payload: "Experts: 8, TopK: 2,
// Hidden: 7168, MaxTokens: 128, Layout: expert-major, Payload: bf16".
func (s Spec) String() string { return members(s, false) }

// Text says all members but those of the Tuning that are zero, as ranks compare them.
func (s Spec) Text() string { return members(s, true) }

func members(s Spec, all bool) string {
	var parts []string
	var add func(prefix string, v reflect.Value, all bool)
	add = func(prefix string, v reflect.Value, all bool) {
		for i := range v.NumField() {
			name, f := v.Type().Field(i).Name, v.Field(i)
			switch {
			case f.Kind() == reflect.Struct:
				add(prefix+name+".", f, false)
			case all || !f.IsZero() || prefix == "" && (name == "Layout" || name == "Payload"):
				parts = append(parts, fmt.Sprintf("%s%s: %v", prefix, name, f.Interface()))
			}
		}
	}
	add("", reflect.ValueOf(s), all)
	return strings.Join(parts, ", ")
}
