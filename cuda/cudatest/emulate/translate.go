package emulate

import (
	"errors"
	"fmt"
	"regexp"
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

// translate makes C++ of preprocessed CUDA C++: it lists the kernels in a table at the end, and gives shared memory its meaning. A static
// variable in shared memory is the thread's in C++, and the scheduler puts the running block's into its place; the dynamic array is a pointer
// to the block's.
func translate(text string) (string, error) {
	table, err := list(text)
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

// list is a table of the kernels of a program, as the scheduler wants it.
func list(text string) (string, error) {
	var entries strings.Builder
	seen := map[string]bool{}
	for _, at := range global.FindAllStringSubmatchIndex(text, -1) {
		if at[2] < 0 {
			continue // its name is mangled: no driver finds it by the one that it has here
		}
		name, bound := header(text[at[1]:])
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		fmt.Fprintf(&entries, "{%q, &Entry<::%s>::run, (u32)(%s), Entry<::%s>::layout.count, Entry<::%s>::layout.offsets, Entry<::%s>::layout.sizes},\n",
			name, name, bound, name, name, name)
	}
	if len(seen) == 0 {
		return "", errors.New(`no kernel: want extern "C" __global__ void name(...)`)
	}
	return fmt.Sprintf(`
namespace emulate {
extern const Kernel kernels[];
extern const u32 kernel_count;
const Kernel kernels[] = {
%s};
const u32 kernel_count = %d;
}
`, entries.String(), len(seen)), nil
}

// header reads what follows __global__: the kernel's name, and the first of its launch bounds, or 0.
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

var scope = regexp.MustCompile(`\bnamespace\b[^;{}()=]*$|\bextern\s*"C(?:\+\+)?"\s*$`)

// inFunctions refuses dynamic shared memory that is declared outside of a function: there is no block yet when the pointer would be made.
func inFunctions(text string) error {
	for _, at := range dynamic.FindAllStringIndex(text, -1) {
		depth, from := 0, 0
		var scopes []bool
		for from < at[0] {
			next := strings.IndexAny(text[from:at[0]], `{}"'`)
			if next < 0 {
				break
			}
			i := from + next
			from = i + 1
			switch text[i] {
			case '{':
				inner := !scope.MatchString(text[max(0, i-200):i])
				scopes = append(scopes, inner)
				if inner {
					depth++
				}
			case '}':
				if n := len(scopes); n > 0 {
					if scopes[n-1] {
						depth--
					}
					scopes = scopes[:n-1]
				}
			case '"':
				if end := strings.IndexByte(text[from:], '"'); end >= 0 {
					from += end + 1
				}
			}
		}
		if depth == 0 {
			return fmt.Errorf("%s: declare it in the functions that use it", strings.Join(strings.Fields(text[at[0]:at[1]]), " "))
		}
	}
	return nil
}
