-- One delivery to an existing execution, in plain statements: 8 trips.
\set m :m + 1
\set message :base + :client_id * 1000000000 + :m
\set place random(1, :keys)
BEGIN ISOLATION LEVEL READ COMMITTED;
WITH setting AS (SELECT set_config('lock_timeout', :bound, true) AS made) INSERT INTO statifier_router_claims (binding_id, scope, message_id, digest, expires_at) SELECT :binding::VARCHAR COLLATE "C", ''::VARCHAR COLLATE "C", :message::VARCHAR COLLATE "C", :digest::VARCHAR COLLATE "C", :expires::TIMESTAMP WITH TIME ZONE FROM setting WHERE setting.made IS NOT NULL ON CONFLICT (binding_id, scope, message_id) DO UPDATE SET digest = excluded.digest, expires_at = excluded.expires_at WHERE statifier_router_claims.expires_at < :now::TIMESTAMP WITH TIME ZONE RETURNING statifier_router_claims.binding_id;
SELECT (SELECT execution_id FROM statifier_router_addresses WHERE scope = :scope::VARCHAR COLLATE "C" AND document = :document::VARCHAR COLLATE "C" AND key = :place::VARCHAR COLLATE "C") AS execution_id, current_setting('transaction_isolation') AS isolation \gset
SELECT id, document, scope, key, content_hash, interpreter, status, CAST(position AS TEXT) AS position, CAST(active AS TEXT) AS active, revision, failure, created_at, ended_at, deferred FROM statifier_router_executions WHERE id = :execution_id::VARCHAR COLLATE "C" FOR NO KEY UPDATE \gset row_
INSERT INTO statifier_router_inputs (execution_id, seq, door, event, message_id, actor, errors, context, details, at) VALUES (:execution_id::VARCHAR COLLATE "C", (SELECT coalesce(max(seq) + 1, 0) FROM statifier_router_inputs AS own WHERE own.execution_id = :execution_id::VARCHAR COLLATE "C"), 'deliver', :event::JSON, :message::VARCHAR COLLATE "C", NULL, NULL, NULL, NULL, :now::TIMESTAMP WITH TIME ZONE);
UPDATE statifier_router_executions SET status = 'active', position = :position::JSON, active = :active::JSON, revision = revision + 1, failure = NULL, ended_at = NULL WHERE id = :execution_id::VARCHAR COLLATE "C" AND revision = :row_revision::BIGINT;
INSERT INTO statifier_router_ledger (binding_id, message_id, scope, outcome, key, execution_id, reason, inserted_at) VALUES (:binding::VARCHAR COLLATE "C", :message::VARCHAR COLLATE "C", :scope::VARCHAR COLLATE "C", 'delivered', :place::VARCHAR COLLATE "C", :execution_id::VARCHAR COLLATE "C", NULL, :now::TIMESTAMP WITH TIME ZONE);
COMMIT;
