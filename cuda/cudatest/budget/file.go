package budget

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/weftgo/weft/cuda/kernel"
)

// slack is the margin of a new file.
const slack = 4

// file is a budget.
type file struct {
	compiler string
	slack    int
	reasons  []reason
	programs map[string]map[string]Use // by architecture and name, as in the file
}

// A reason says why kernels spill: those whose program's name, a space and their own begin with the
// prefix.
type reason struct{ prefix, text string }

// ErrOtherCompiler says that a budget was made with another compiler version, whose figures differ.
var ErrOtherCompiler = errors.New("the budget is of another compiler")

// Check holds programs, all of one compiler, to a budget. Uncompiled are programs that a sample leaves
// out: the budget has them, too. The budget's kernels of architectures without a program are ignored;
// other superfluous kernels are an error, as is a kernel that the budget lacks. With rewrite the file is
// written first, with the programs' use.
func Check(path string, programs []Program, uncompiled []kernel.Spec, rewrite bool) error {
	if len(programs) == 0 {
		return errors.New("no programs")
	}
	text, err := os.ReadFile(path)
	if err != nil && !(rewrite && errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	f := &file{slack: slack, programs: map[string]map[string]Use{}}
	if len(text) > 0 {
		if f, err = parse(string(text)); err != nil {
			return fmt.Errorf("%s:%w", path, err)
		}
	}
	if rewrite {
		f.take(programs)
		if err := os.WriteFile(path, f.format(), 0o644); err != nil {
			return err
		}
	}
	if f.compiler != programs[0].Compiler {
		return fmt.Errorf("%w: %s is of %s, this is %s", ErrOtherCompiler, path, f.compiler, programs[0].Compiler)
	}
	return f.check(programs, uncompiled)
}

func (f *file) check(programs []Program, uncompiled []kernel.Spec) error {
	var wrong []error
	archs, known := map[string]bool{}, map[string]bool{}
	for _, s := range uncompiled {
		heading := s.Arch + " " + s.Name
		archs[s.Arch], known[heading] = true, true
		if f.programs[heading] == nil {
			wrong = append(wrong, fmt.Errorf("%s has no budget", heading))
		}
	}
	for _, p := range programs {
		heading := p.Arch + " " + p.Name
		archs[p.Arch], known[heading] = true, true
		kernels := f.programs[heading]
		for _, name := range slices.Sorted(maps.Keys(p.Kernels)) {
			allowed, ok := kernels[name]
			if !ok {
				wrong = append(wrong, fmt.Errorf("%s: kernel %s has no budget", heading, name))
				continue
			}
			for _, err := range exceeds(p.Kernels[name], allowed, f.slack) {
				wrong = append(wrong, fmt.Errorf("%s: kernel %s: %w", heading, name, err))
			}
			if allowed.Spilled > 0 && !slices.ContainsFunc(f.reasons,
				func(r reason) bool { return strings.HasPrefix(p.Name+" "+name, r.prefix) }) {
				wrong = append(wrong,
					fmt.Errorf("%s: kernel %s: %d bytes are spilled for no reason: write one in the budget",
						heading, name, allowed.Spilled))
			}
		}
		for _, name := range slices.Sorted(maps.Keys(kernels)) {
			if _, ok := p.Kernels[name]; !ok {
				wrong = append(wrong, fmt.Errorf("%s: the budget has kernel %s, and it is gone", heading, name))
			}
		}
	}
	for _, heading := range slices.Sorted(maps.Keys(f.programs)) {
		if arch, _, _ := strings.Cut(heading, " "); archs[arch] && !known[heading] {
			wrong = append(wrong, fmt.Errorf("the budget has %s, and it is gone", heading))
		}
	}
	return errors.Join(wrong...)
}

func exceeds(use, allowed Use, slack int) (wrong []error) {
	for _, c := range []struct {
		what          string
		used, allowed int
	}{
		{"registers", use.Registers, allowed.Registers + slack},
		{"bytes of stack", use.Stack, allowed.Stack},
		{"bytes spilled", use.Spilled, allowed.Spilled},
		{"bytes of static shared memory", use.Shared, allowed.Shared},
	} {
		if c.used > c.allowed {
			wrong = append(wrong, fmt.Errorf("%d %s, %d are allowed", c.used, c.what, c.allowed))
		}
	}
	return wrong
}

// take replaces the budget of the programs' architectures.
func (f *file) take(programs []Program) {
	f.compiler = programs[0].Compiler
	for _, p := range programs {
		maps.DeleteFunc(f.programs, func(heading string,
			_ map[string]Use,
		) bool {
			return strings.HasPrefix(heading, p.Arch+" ")
		})
	}
	for _, p := range programs {
		f.programs[p.Arch+" "+p.Name] = p.Kernels
	}
}

// row is a kernel's line, and that of the columns' names.
const row = "  %-24v %9v %5v %7v %6v\n"

var columns = fmt.Sprintf(row, "kernel", "registers", "stack", "spilled", "shared")

func (f *file) format() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "compiler %s\nslack %d\n", f.compiler, f.slack)
	for _, r := range f.reasons {
		fmt.Fprintf(&b, "spills %s: %s\n", r.prefix, r.text)
	}
	b.WriteString(columns)
	for _, heading := range slices.Sorted(maps.Keys(f.programs)) {
		fmt.Fprintln(&b, heading)
		for _, name := range slices.Sorted(maps.Keys(f.programs[heading])) {
			u := f.programs[heading][name]
			fmt.Fprintf(&b, row, name, u.Registers, u.Stack, u.Spilled, u.Shared)
		}
	}
	return b.Bytes()
}

// parse reads a file. Its errors begin with the line's number.
func parse(text string) (*file, error) {
	f := &file{programs: map[string]map[string]Use{}}
	heading := ""
	number := 0
	for s := range strings.Lines(text) {
		number++
		fields := strings.Fields(s)
		indented := strings.HasPrefix(s, " ")
		var err error
		switch {
		case len(fields) == 0:
		case number == 1:
			if f.compiler = strings.Join(fields[1:], " "); fields[0] != "compiler" || f.compiler == "" {
				err = errors.New("want a line as: compiler NVRTC 13.0")
			}
		case number == 2:
			if f.slack, err = natural(fields[len(fields)-1]); fields[0] != "slack" || err != nil {
				err = errors.New("want a line as: slack 4")
			}
		case !indented && fields[0] == "spills":
			prefix, text, ok := strings.Cut(strings.Join(fields[1:], " "), ": ")
			if !ok {
				err = errors.New("want a line as: spills PREFIX: REASON")
				break
			}
			f.reasons = append(f.reasons, reason{prefix, text})
		case !indented:
			heading = strings.Join(fields, " ")
			if f.programs[heading] != nil {
				err = fmt.Errorf("%s is there twice", heading)
			}
			f.programs[heading] = map[string]Use{}
		case slices.Equal(fields, strings.Fields(columns)):
		case heading == "":
			err = errors.New("a kernel of no program")
		default:
			err = f.kernel(heading, fields)
		}
		if err != nil {
			return nil, fmt.Errorf("%d: %w", number, err)
		}
	}
	if number < 2 {
		return nil, fmt.Errorf("%d: the file has no compiler and no slack", number)
	}
	return f, nil
}

func (f *file) kernel(heading string, fields []string) error {
	if len(fields) != 5 {
		return fmt.Errorf("%d columns, want %d", len(fields), 5)
	}
	if _, twice := f.programs[heading][fields[0]]; twice {
		return fmt.Errorf("kernel %s is there twice", fields[0])
	}
	var u Use
	for i, to := range []*int{&u.Registers, &u.Stack, &u.Spilled, &u.Shared} {
		var err error
		if *to, err = natural(fields[i+1]); err != nil {
			return err
		}
	}
	f.programs[heading][fields[0]] = u
	return nil
}

func natural(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("%q: want a number", s)
	}
	return int(n), nil
}
