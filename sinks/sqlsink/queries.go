package sqlsink

// queries are the statements of a sink, with its table names.
type queries struct {
	fence, topic, insert, claim, advance, deadLetter string
}

func newQueries(d Dialect, prefix string) queries {
	const (
		key   = ` WHERE consumer_group = ? AND topic = ? AND number = ?`
		state = `log, source, lease_generation, owner, epoch, claim, next_offset, leader_epoch, applied`
	)
	fences := prefix + `fences`
	return queries{
		fence: `SELECT ` + state + ` FROM ` + fences + key,
		topic: `SELECT number, ` + state + ` FROM ` + fences + ` WHERE consumer_group = ? AND topic = ?`,
		insert: `INSERT INTO ` + fences + ` (consumer_group, topic, number, log, source, next_offset, leader_epoch)` +
			` VALUES (?, ?, ?, ?, ?, ?, ?)`,
		claim: `UPDATE ` + fences + ` SET lease_generation = ?, owner = ?, epoch = ?, claim = ?,` +
			` next_offset = COALESCE(?, next_offset), leader_epoch = COALESCE(?, leader_epoch),` +
			` applied = COALESCE(?, applied), claimed_at = ` + d.now() +
			key + ` AND epoch = ? AND claim = ?`,
		// Rule R1: the claim and the position, both, in the statement that
		// moves the fence. An advance that applies no message keeps the leader
		// epoch; next_offset is set last because MySQL reads what it has set.
		advance: `UPDATE ` + fences + ` SET leader_epoch = CASE WHEN next_offset = ? THEN leader_epoch ELSE ? END,` +
			` applied = CASE WHEN next_offset = ? THEN applied ELSE 1 END,` +
			` advanced_at = ` + d.now() + `, next_offset = ?` +
			key + ` AND claim = ? AND next_offset = ?`,
		deadLetter: `INSERT INTO ` + prefix + `dead_letters (consumer_group, topic, number, message_offset, epoch,` +
			` message_key, message_value, headers, message_time, leader_epoch, cause, dead_at)` +
			` VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ` + d.now() + `)`,
	}
}
