package epoch

// This file has what a source grants. Whether it still holds is the source's answer, in
// Candidate.Confirm; what a claim makes of it is decided in fence.go.

// Origin says where a partition's messages and leases come from. Two origins with equal strings
// must mean the same log and the same issuer of generations, so sources build them from ids that
// are never reused.
type Origin struct {
	Partition Partition

	// Log identifies the log whose offsets the fence counts, such as the cluster's id with the
	// topic's id. It must change when offsets start to mean something else: in another cluster, or
	// when a topic is deleted and recreated under its old name.
	Log string

	// Source identifies the issuer of the lease's generations. It must differ between two
	// deployments that lease the same partition from two issuers.
	Source string
}

// Lease is the right to try to claim a partition. A source grants it, and may have revoked it
// before the process knows.
type Lease struct {
	Origin

	// Generation is the number that the source gave this lease: the generation of a group, the
	// epoch of a member, the revision of a key. It is positive. A source that starts over may issue
	// a number again, or a lower number.
	Generation int64

	// Owner names the process for operators. Nothing compares it.
	Owner string
}
