package lease

import (
	"cmp"
	"net/url"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/cas"
)

// Resource is what a lease is about: one of the numbered parts of Name, or, for [Member.Acquire],
// part 0.
type Resource struct {
	Name   string
	Number int32
}

// String returns the name and the number, such as "orders/3".
func (r Resource) String() string { return r.Name + "/" + strconv.Itoa(int(r.Number)) }

func (r Resource) compare(other Resource) int {
	return cmp.Or(cmp.Compare(r.Name, other.Name), cmp.Compare(r.Number, other.Number))
}

// keys are the keys of one group. One list has them all.
type keys struct{ prefix string }

func keysOf(group string) keys { return keys{cas.Join(group, "lease", "")} }

func (k keys) member(id string) string { return k.prefix + "member/" + id }

func (k keys) resource(r Resource) string {
	return k.prefix + cas.Join("resource", r.Name, strconv.Itoa(int(r.Number)))
}

func (k keys) parseMember(key string) (id string, ok bool) {
	return strings.CutPrefix(key, k.prefix+"member/")
}

func (k keys) parseResource(key string) (Resource, bool) {
	rest, ok := strings.CutPrefix(key, k.prefix+"resource/")
	if !ok {
		return Resource{}, false
	}
	name, number, _ := strings.Cut(rest, "/")
	n, err := strconv.ParseInt(number, 10, 32)
	if err != nil || n < 0 {
		return Resource{}, false
	}
	name, err = url.PathUnescape(name)
	r := Resource{name, int32(n)}
	return r, err == nil && k.resource(r) == key // no other spelling of it
}
