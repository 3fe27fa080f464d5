package mutation

import (
	"fmt"
	"io/fs"
	"path"
	"slices"
)

type way int

const (
	switched way = iota // the test binary has functions without it, which its number selects
	replaced            // the binary replaces SQL when it reads its scripts
	shown               // its test reads source files, and gets another file
)

func (w way) String() string {
	return [...]string{
		"are in the binary of their package's tests",
		"are in SQL, which is replaced at run time",
		"are in source files that their tests read",
	}[w]
}

// mutant is a guard and its removal.
type mutant struct {
	guard
	number  int // from 1
	way     way
	changes map[string][]change // by file
}

// title is unique among mutants, and one line.
func (m mutant) title() string { return fmt.Sprintf("guard %d, %s %s", m.number, m.rule, m.taken) }

func (m mutant) files(ext string) (all []string) {
	for file := range m.changes {
		if path.Ext(file) == ext {
			all = append(all, file)
		}
	}
	slices.Sort(all)
	return all
}

type plan struct {
	module  fs.FS
	mutants []mutant
	goFiles map[string]*goFile // the files with guards
}

func newPlan(module fs.FS, all []guard, wanted func(guard) bool) (*plan, error) {
	p := &plan{module: module, goFiles: map[string]*goFile{}}
	for i, g := range all {
		if !wanted(g) {
			continue
		}
		changes, err := g.changes(module)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", g.rule, g.taken, err)
		}
		m := mutant{guard: g, number: i + 1, changes: changes}
		if m.way, err = p.wayOf(m); err != nil {
			return nil, fmt.Errorf("%s %s: %w", g.rule, g.taken, err)
		}
		p.mutants = append(p.mutants, m)
	}
	return p, nil
}

func (p *plan) wayOf(m mutant) (way, error) {
	if m.pkg == "internal/mutation" {
		return shown, nil
	}
	files := m.files(".go")
	for _, name := range files {
		f, err := p.goFile(name)
		if err != nil {
			return 0, err
		}
		for _, c := range m.changes[name] {
			if d := f.enclosing(c.span); d == nil || !canBeSwitched(d) {
				return 0, fmt.Errorf("%s: %q is in no function that can be switched", name, f.src[c.from:c.to])
			}
		}
	}
	if len(files) == 0 {
		return replaced, nil
	}
	return switched, nil
}

func (p *plan) goFile(name string) (*goFile, error) {
	if f := p.goFiles[name]; f != nil {
		return f, nil
	}
	src, err := fs.ReadFile(p.module, name)
	if err != nil {
		return nil, err
	}
	f, err := parse(name, string(src))
	if err != nil {
		return nil, err
	}
	p.goFiles[name] = f
	return f, nil
}

func (p *plan) packages() (all []string) {
	for _, m := range p.mutants {
		all = append(all, m.pkg)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func (p *plan) of(pkg string) []mutant {
	return slices.DeleteFunc(slices.Clone(p.mutants), func(m mutant) bool { return m.pkg != pkg })
}

// String counts the guards by way.
func (p *plan) String() string {
	count := map[way]int{}
	for _, m := range p.mutants {
		count[m.way]++
	}
	text := fmt.Sprintf("%d guards", len(p.mutants))
	separator := ": "
	for w := switched; w <= shown; w++ {
		if count[w] > 0 {
			text += fmt.Sprintf("%s%d %v", separator, count[w], w)
			separator = "; "
		}
	}
	return text
}

// switches returns the files that replace or extend the module's files in the test binaries, so
// that guards can be switched off.
func (p *plan) switches() (map[string]string, error) {
	files, err := scriptSwitch(p.module)
	if err != nil {
		return nil, err
	}
	ms := slices.DeleteFunc(slices.Clone(p.mutants), func(m mutant) bool { return m.way != switched })
	for name, f := range p.goFiles {
		if slices.ContainsFunc(ms, func(m mutant) bool { return len(m.changes[name]) > 0 }) {
			files[name] = f.switched(ms)
			files[path.Join(path.Dir(name), "mutation_switch.go")] = switchFile(f.tree.Name.Name)
		}
	}
	return files, nil
}
