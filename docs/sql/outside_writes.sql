-- As a role with `epochfence grants --as reader`: for an exporter of SQL queries to Prometheus.
select table_schema || '.' || table_name as "table", role, transactions as total,
    extract(epoch from last_at) as last_timestamp_seconds
from epochfence.outside_writes();
