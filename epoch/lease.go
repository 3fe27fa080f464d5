package epoch

// Origin says where a partition's messages and its leases come from. Two
// origins with equal strings must mean the same log and the same issuer of
// generations, so sources build them from ids that are never reused.
type Origin struct {
	Partition Partition

	// Log identifies the log whose offsets the fence counts. It must change
	// when offsets start to mean something else: a topic deleted and
	// recreated under its old name, another cluster. A source uses the
	// cluster's id with the topic's id, or the like.
	Log string

	// Source identifies who issues the lease's generations. Two deployments that
	// lease the same partition from two issuers must differ in it.
	Source string
}

// Lease is the right to try to claim a partition. A source grants it, and may have taken it
// back before the process knows.
type Lease struct {
	Origin

	// Generation is the number that the source gave this lease: the generation of
	// a group, the epoch of a member, the revision of a key. It is positive. A
	// source that restarts may give out a number again, or a lower one.
	Generation int64

	// Owner names the process for operators. Nothing compares it.
	Owner string
}
