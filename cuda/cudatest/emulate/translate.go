package emulate

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

var (
	global     = regexp.MustCompile(`(extern\s*"C"\s*)?\b__global__\b`)
	word       = regexp.MustCompile(`[A-Za-z_]\w*`)
	bounds     = regexp.MustCompile(`\b__launch_bounds__\s*\(`)
	dynamic    = regexp.MustCompile(`\bextern\s+__shared__\s+([^;{}]*?)([A-Za-z_]\w*)\s*\[\s*\]\s*;`)
	alignments = regexp.MustCompile(`alignas\s*\([^()]*\)|__attribute__\s*\(\((?:[^()]|\([^()]*\))*\)\)`)
	static     = regexp.MustCompile(`\b__shared__\b`)
)

// translate makes C++ of preprocessed CUDA C++: it lists the kernels in a table at the end, and
// gives shared memory its meaning. A static variable in shared memory is the thread's in C++, and
// the scheduler puts the running block's into its place; the dynamic array is a pointer to the
// block's.
func translate(text string, named []string) (string, error) {
	table, err := list(text, named)
	if err != nil {
		return "", err
	}
	for at := bounds.FindStringIndex(text); at != nil; at = bounds.FindStringIndex(text) {
		text = text[:at[0]] + text[closing(text, at[1]):]
	}
	if err := inFunctions(text); err != nil {
		return "", err
	}
	text = dynamic.ReplaceAllStringFunc(text, func(s string) string {
		m := dynamic.FindStringSubmatch(s)
		element := strings.TrimSpace(alignments.ReplaceAllString(m[1], ""))
		return fmt.Sprintf("%s *const %s = (%s *)::emulate::dynamic_shared();", element, m[2], element)
	})
	text = static.ReplaceAllString(text, "thread_local")
	return global.ReplaceAllString(text, "$1") + table, nil
}

// list is a table of the kernels of a program, as the scheduler wants it: those that are extern
// "C", and those that are named.
func list(text string, named []string) (string, error) {
	var limits, entries strings.Builder
	seen := map[string]bool{}
	add := func(name string, namespaces []string, bound string) {
		if seen[name] {
			return
		}
		// A bound may use names of the kernel's namespace.
		limit := fmt.Sprintf("emulate_bound_%d", len(seen))
		seen[name] = true
		fmt.Fprintf(&limits, "%sconstexpr unsigned %s = (unsigned)(%s);%s\n", within(namespaces), limit, bound,
			strings.Repeat(" }", len(namespaces)))
		fmt.Fprintf(&entries, "{%q, &Entry<::%s>::run, ::%s, Entry<::%s>::layout.count, "+
			"Entry<::%s>::layout.offsets, Entry<::%s>::layout.sizes},\n",
			name, name, strings.Join(append(namespaces, limit), "::"), name, name, name)
	}
	for _, at := range global.FindAllStringSubmatchIndex(text, -1) {
		name, bound := header(text[at[1]:])
		if name == "" {
			continue
		}
		if at[2] >= 0 {
			add(name, nil, bound)
			continue
		}
		namespaces := namespacesAt(text, at[0])
		full := strings.Join(append(slices.Clone(namespaces), name), "::")
		for _, n := range named {
			if base, _, _ := strings.Cut(n, "<"); base == full {
				add(n, namespaces, bound)
			}
		}
	}
	for _, n := range named {
		if !seen[n] {
			return "", fmt.Errorf("no kernel %s", n)
		}
	}
	if len(seen) == 0 {
		return "", errors.New(`no kernel: want extern "C" __global__ void name(...), or one that the Spec's Kernels name`)
	}
	return fmt.Sprintf(`
%snamespace emulate {
extern const Kernel kernels[];
extern const u32 kernel_count;
const Kernel kernels[] = {
%s};
const u32 kernel_count = %d;
}
`, limits.String(), entries.String(), len(seen)), nil
}

// within opens namespaces.
func within(namespaces []string) string {
	var open strings.Builder
	for _, n := range namespaces {
		fmt.Fprintf(&open, "namespace %s { ", n)
	}
	return open.String()
}

// header reads the text after __global__: the kernel's name, and the first of its launch bounds, or
// 0.
func header(text string) (name, bound string) {
	bound = "0"
	for {
		open := strings.IndexAny(text, "(;{")
		if open < 0 || text[open] != '(' {
			return "", ""
		}
		words := word.FindAllString(text[:open], -1)
		if len(words) == 0 {
			return "", ""
		}
		name = words[len(words)-1]
		if name != "__launch_bounds__" {
			return name, bound
		}
		end := closing(text, open+1)
		bound, _, _ = strings.Cut(text[open+1:end-1], ",")
		text = text[end:]
	}
}

// closing is where the parenthesis ends that has been opened before from.
func closing(text string, from int) int {
	for depth := 1; from < len(text); from++ {
		switch text[from] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return from + 1
			}
		}
	}
	return len(text)
}

var (
	namespace = regexp.MustCompile(`\bnamespace\b([\w:\s]*)$`)
	linkage   = regexp.MustCompile(`\bextern\s*"C(?:\+\+)?"\s*$`)
)

// inFunctions refuses dynamic shared memory that is declared outside of a function: there is no
// block yet when the pointer would be made.
func inFunctions(text string) error {
	for _, at := range dynamic.FindAllStringIndex(text, -1) {
		if !slices.ContainsFunc(openAt(text, at[0]),
			func(head string) bool { return !namespace.MatchString(head) && !linkage.MatchString(head) }) {
			return fmt.Errorf("%s: declare it in the functions that use it",
				strings.Join(strings.Fields(text[at[0]:at[1]]), " "))
		}
	}
	return nil
}

// namespacesAt are the namespaces around a place, the outermost first. One without a name is none.
func namespacesAt(text string, at int) (names []string) {
	for _, head := range openAt(text, at) {
		if m := namespace.FindStringSubmatch(head); m != nil {
			names = append(names, word.FindAllString(m[1], -1)...)
		}
	}
	return names
}

// openAt returns the heads of the braces that are open at a place, the outermost first: the text
// before each since the last statement or brace.
func openAt(text string, at int) (heads []string) {
	begin := 0 // of the next head
	for i := 0; i < at; i++ {
		switch text[i] {
		case '{':
			heads = append(heads, text[begin:i])
			begin = i + 1
		case '}':
			heads = heads[:max(0, len(heads)-1)]
			begin = i + 1
		case ';':
			begin = i + 1
		case '"', '\'':
			if text[i] == '\'' && i > 0 && '0' <= text[i-1] && text[i-1] <= '9' {
				continue // it separates digits
			}
			quote := text[i]
			for i++; i < at && text[i] != quote; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		}
	}
	return heads
}
