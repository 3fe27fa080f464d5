package sqlsink

// queries are the statements of a sink, with its table names.
type queries struct {
	fence, topic, insert, claim, advance, deadLetter string
}

func newQueries(d Dialect, prefix string) queries {
	const (
		key   = ` WHERE group_name = ? AND topic = ? AND number = ?`
		state = `log_id, lease_source, lease_generation, owner, epoch, claim_id, next_offset, mark, applied`
	)
	fences := prefix + `fence`
	return queries{
		fence: `SELECT ` + state + ` FROM ` + fences + key,
		topic: `SELECT number, ` + state + ` FROM ` + fences + ` WHERE group_name = ? AND topic = ?`,
		insert: `INSERT INTO ` + fences + ` (group_name, topic, number, log_id, lease_source, next_offset, mark)` +
			` VALUES (?, ?, ?, ?, ?, ?, ?)`,
		claim: `UPDATE ` + fences + ` SET lease_generation = ?, owner = ?, epoch = ?, claim_id = ?,` +
			` next_offset = COALESCE(?, next_offset), mark = COALESCE(?, mark),` +
			` applied = COALESCE(?, applied), claimed_at = ` + d.now() +
			key + ` AND epoch = ? AND claim_id = ?`,
		// Rule R1: the claim and the position, both, in the statement that
		// moves the fence. An advance that applies no message keeps the mark;
		// next_offset is set last because MySQL reads what it has set.
		advance: `UPDATE ` + fences + ` SET mark = CASE WHEN next_offset = ? THEN mark ELSE ? END,` +
			` applied = CASE WHEN next_offset = ? THEN applied ELSE 1 END,` +
			` advanced_at = ` + d.now() + `, next_offset = ?` +
			key + ` AND claim_id = ? AND next_offset = ?`,
		deadLetter: `INSERT INTO ` + prefix + `dead_letter (group_name, topic, number, message_offset, epoch,` +
			` message_key, message_value, headers, message_time, error, failed_at)` +
			` VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ` + d.now() + `)`,
	}
}
