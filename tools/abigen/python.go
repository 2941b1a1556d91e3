package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// inPython says which enumerations are not by the rule in Python: a class of that name, with small
// members.
var inPython = map[string]struct {
	class   string // "": there is none, only numbers; that of dtypes is DType, which has more than members
	capital bool   // members keep their letters
}{
	"weft_status":       {"Status", true},
	"weft_routing_part": {"Part", true},
	"weft_engine":       {},
	"weft_dtype":        {},
}

var pythonNumbers = map[string]string{
	"char": "c_char", "int": "c_int", "float": "c_float", "size_t": "c_size_t",
	"uint8_t": "c_uint8", "int32_t": "c_int32", "int64_t": "c_int64", "uint64_t": "c_uint64",
}

var ctype = regexp.MustCompile(`\bc_\w+`)

// python is _abi.py.
func (h *header) python() string {
	var b strings.Builder
	b.WriteString("\n")
	for _, n := range h.numbers {
		value := fmt.Sprint(n.value)
		if n.value == ^uint64(0) {
			value = "2**64 - 1"
		}
		fmt.Fprintf(&b, "%s = %s\n", strings.TrimPrefix(n.name, "WEFT_"), value)
	}
	for _, t := range h.texts {
		fmt.Fprintf(&b, "%s = %q\n", strings.TrimPrefix(t.name, "WEFT_"), t.value)
	}
	for _, e := range h.enums {
		if as, special := inPython[e.name]; special && as.class == "" {
			for _, m := range e.members {
				fmt.Fprintf(&b, "%s = %d\n", strings.TrimPrefix(m.name, "WEFT_"), m.value)
			}
		}
	}
	for _, e := range h.enums {
		h.pythonEnum(&b, e)
	}
	b.WriteString("\n\n")
	for _, f := range h.callbacks {
		types := append([]string{h.pythonResult(f.result)}, h.pythonTypes(f.params)...)
		fmt.Fprintf(&b, "%s = CFUNCTYPE(%s)\n", camel(f.name), strings.Join(types, ", "))
	}
	for _, s := range h.structs {
		fmt.Fprintf(&b, "\n\nclass %s(Struct):\n    _fields_ = (\n", camel(s.name))
		for _, m := range s.members {
			of := h.pythonType(m)
			if m.length > 0 {
				of += fmt.Sprintf(" * %d", m.length)
			}
			fmt.Fprintf(&b, "        (%q, %s),\n", m.name, of)
		}
		b.WriteString("    )\n")
	}
	b.WriteString("\n\n# The arguments of every function. All return a status, unless RESULTS says something else.\n")
	b.WriteString("FUNCTIONS: dict[str, tuple[type, ...]] = {\n")
	for _, f := range h.functions {
		types := h.pythonTypes(f.params)
		line := fmt.Sprintf("    %q: (%s),\n", f.name, strings.Join(types, ", "))
		switch {
		case len(types) == 1:
			line = fmt.Sprintf("    %q: (%s,),\n", f.name, types[0])
		case len(line) > 100: // a comma at the end keeps formatters from joining the lines
			line = fmt.Sprintf("    %q: (\n        %s,\n    ),\n", f.name, strings.Join(types, ",\n        "))
		}
		b.WriteString(line)
	}
	b.WriteString("}\n\nRESULTS: dict[str, type | None] = {\n")
	for _, f := range h.functions {
		if result := h.pythonResult(f.result); result != "c_int" {
			fmt.Fprintf(&b, "    %q: %s,\n", f.name, result)
		}
	}
	b.WriteString("}\n")

	body := b.String()
	uses := append(ctype.FindAllString(body, -1), "CFUNCTYPE")
	slices.Sort(uses)
	uses = slices.Compact(uses)
	return "# " + notice + `
"""What weft.h says: enumerators, structs and functions. A test compares it with the record of the library's ABI."""

from __future__ import annotations

from ctypes import ` + strings.Join(uses, ", ") + `

from ._bases import Choice, Struct
` + body
}

func (h *header) pythonEnum(b *strings.Builder, e enum) {
	as, special := inPython[e.name]
	if !special {
		as.class = camel(e.name)
	}
	if as.class == "" {
		return
	}
	fmt.Fprintf(b, "\n\nclass %s(Choice):\n", as.class)
	if e.doc != "" {
		fmt.Fprintf(b, "    \"\"\"%s\"\"\"\n\n", strings.ReplaceAll(e.doc, "\n", "\n    "))
	}
	names := e.short()
	for i, m := range e.members {
		name := names[i]
		if !as.capital {
			name = strings.ToLower(name)
		}
		fmt.Fprintf(b, "    %s = %d\n", name, m.value)
		if m.doc != "" {
			fmt.Fprintf(b, "    \"\"\"%s\"\"\"\n", strings.ReplaceAll(m.doc, "\n", "\n    "))
		}
	}
}

// short are the names of enumerators without what all have of the enumeration's name, before or
// behind.
func (e enum) short() []string {
	var names []string
	for _, m := range e.members {
		names = append(names, strings.TrimPrefix(m.name, "WEFT_"))
	}
	for _, part := range strings.Split(strings.ToUpper(e.name), "_") {
		for _, trim := range []func(string) (string, bool){
			func(s string) (string, bool) { return strings.CutPrefix(s, part+"_") },
			func(s string) (string, bool) { return strings.CutSuffix(s, "_"+part) },
			func(s string) (string, bool) { return strings.CutSuffix(s, "_"+part+"S") },
		} {
			var cut []string
			for _, name := range names {
				if rest, ok := trim(name); ok {
					cut = append(cut, rest)
				}
			}
			if len(cut) == len(names) {
				names = cut
			}
		}
	}
	return names
}

// pythonType is a variable's type. Addresses are numbers: who calls often keeps them.
func (h *header) pythonType(v variable) string {
	switch k := h.types[v.base]; {
	case v.base == "char" && v.pointers == 1:
		return "c_char_p"
	case v.pointers > 0 || k == handle || k == address:
		return "c_void_p"
	case k == callback:
		return camel(v.base)
	case k == listed:
		return "c_int"
	default:
		return pythonNumbers[v.base]
	}
}

func (h *header) pythonTypes(all []variable) []string {
	var types []string
	for _, v := range all {
		types = append(types, h.pythonType(v))
	}
	return types
}

func (h *header) pythonResult(v variable) string {
	if v == (variable{base: "void"}) {
		return "None"
	}
	return h.pythonType(v)
}

// camel is the name of a class: weft_ep_info is EpInfo, and weft_log_fn LogFunction.
func camel(name string) string {
	name = strings.TrimPrefix(name, "weft_")
	if callback, ok := strings.CutSuffix(name, "_fn"); ok {
		name = callback + "_function"
	}
	var b strings.Builder
	for _, part := range strings.Split(name, "_") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}
