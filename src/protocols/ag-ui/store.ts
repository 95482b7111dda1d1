import { createHash } from 'node:crypto'
import { z } from 'zod'
import { messageOrigin } from '#conversation/dialog/messages/store.ts'
import { type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { approvalKind } from '#execution/approvals/model.ts'

const Thread = z.object({
  agent_project_id: z.string(),
  /** Project of the session: the project of the credential, else of the agent. */
  project_id: z.string(),
  /** Null if the thread is new. */
  session_id: z.string().nullable(),
  state: z.unknown(),
  /** Whether the agent changes the state. */
  shared_state: z.boolean(),
  /** The run, if it has begun before; its turn is null if it only stored messages. */
  run: z.object({ generation_id: z.string().nullable(), after_frame: z.int() }).nullable(),
  /** The requested ids that stored messages have: of the client, or of their documents. */
  stored_ids: z.array(z.string()),
  /** Whether the session had messages that the client lacks when the run began. */
  lacks_history: z.boolean(),
  /** Whether the agent takes tools of clients. */
  accept_client_tools: z.boolean(),
  /** Names of tools of the agent. */
  tool_names: z.array(z.string()),
})
/** A thread of a client with its run. */
export type Thread = z.output<typeof Thread>
const threadRow = sql.type(Thread)

/** Returns the digest of a run id. */
const runDigest = (runId: string): Buffer => createHash('sha256').update(runId).digest()

type ThreadRequest = {
  agent_id: string
  /** Project of the credential; null if it is unbound. */
  project_id: string | null
  thread_id: string
  /** Key of the session of a thread with the client's own id. */
  session_key: string
  run_id: string
  /** End user, by id or by external id; null for none. */
  actor: { id: string } | { external_id: string } | null
  message_ids: readonly string[]
  generation_ids: readonly string[]
}

/**
 * Returns the thread of a run: the session with the thread's id, which belongs to the end user if there is one, or with its
 * key for the agent and end user. Null without the agent. One statement, by the primary keys, session_keys and
 * conversation_messages_idempotency.
 */
export function findThread(db: Queryable, request: ThreadRequest): Promise<Thread | null> {
  const { agent_id, project_id, thread_id, session_key, run_id, actor } = request
  const messageIds = sql.array([...request.message_ids], 'text')
  const actorId = actor && 'id' in actor ? actor.id : null
  const externalId = actor && 'external_id' in actor ? actor.external_id : null
  return db.maybeOne(threadRow`
    with target as (
      select a.id, a.project_id as agent_project_id, coalesce(${project_id}, a.project_id) as project_id, a.tool_bindings, a.tool_ids,
        a.shared_state, a.accept_client_tools
      from agents a where a.id = ${agent_id}
    ), end_user as (
      select coalesce(${actorId}, (
        select x.id from actors x where x.project_id = target.project_id and x.external_id = ${externalId})) as id
      from target
    ), thread as (
      select s.id, s.conversation_id, s.state from target cross join end_user
      join sessions s on s.agent_id = target.id and s.project_id = target.project_id
      where s.id = ${thread_id} and (${actor === null} or s.actor_id = end_user.id)
      union all
      select s.id, s.conversation_id, s.state from target cross join end_user join session_keys k
        on k.project_id = target.project_id and k.agent_id = target.id and k.key = ${session_key}
        and k.actor_id is not distinct from end_user.id and (${externalId}::text is null or end_user.id is not null)
      join sessions s on s.id = k.session_id and s.hidden_at is null
    ), run as (
      select r.generation_id, r.after_frame, r.created_at from thread
      join ag_ui_runs r on r.session_id = thread.id and r.run = ${sql.binary(runDigest(run_id))}
    )
    select target.agent_project_id, target.project_id, thread.id as session_id, thread.state,
      target.shared_state, target.accept_client_tools,
      (select jsonb_build_object('generation_id', run.generation_id, 'after_frame', run.after_frame) from run) as run,
      array(select m.idempotency_key from conversation_messages m
        where m.conversation_id = thread.conversation_id and m.idempotency_key = any(${messageIds})
          and m.operator_id is null
        union all select m.document_id from conversation_messages m
        where m.conversation_id = thread.conversation_id and m.document_id = any(${messageIds})) as stored_ids,
      exists (select 1 from conversation_messages m
        where m.conversation_id = thread.conversation_id and ${messageOrigin} in ('end_user', 'agent', 'operator')
          and m.created_at <= coalesce((select run.created_at from run), 'infinity')
          and coalesce(case when m.operator_id is null then m.idempotency_key end, m.document_id) <> all(${messageIds})
          and not coalesce(m.generation_id = any(${sql.array([...request.generation_ids], 'text')}), false)) as lacks_history,
      array(select b -> 'tool' ->> 'name' from json_array_elements(target.tool_bindings) b where b -> 'tool' ->> 'name' is not null
        union all select t.name from tools t where t.id = any(target.tool_ids)) as tool_names
    from target left join thread on true`)
}

/** A run of a session, by the client's id. */
type RunKey = { session_id: string; run_id: string }

/** Records a run with its turn, or without one. Returns false if the run was recorded before. */
export const recordRun = async (
  db: Queryable,
  { session_id, run_id }: RunKey,
  turn: { generation_id: string | null; after: number },
): Promise<boolean> =>
  (
    await db.query(voidStatement`
      insert into ag_ui_runs (session_id, run, generation_id, after_frame)
      values (${session_id}, ${sql.binary(runDigest(run_id))}, ${turn.generation_id}, ${turn.after})
      on conflict do nothing`)
  ).rowCount === 1

const runRow = sql.type(z.object({ generation_id: z.string().nullable(), after_frame: z.int() }))

/** Returns the recorded run, or null. */
export const findRun = (db: Queryable, { session_id, run_id }: RunKey) =>
  db.maybeOne(runRow`
    select generation_id, after_frame from ag_ui_runs
    where session_id = ${session_id} and run = ${sql.binary(runDigest(run_id))}`)

const ThreadApproval = approvalKind.row.extend({ is_open: z.boolean() })
/** An approval of a session that its end user decides. */
export type ThreadApproval = z.output<typeof ThreadApproval>
const threadApprovalRow = sql.type(ThreadApproval)

/**
 * Locks and returns the approvals that a session's end user decides: open ones, and the given ones. By approvals_session.
 * The order is the order of locks in every transaction.
 */
export const lockInterrupts = (db: Queryable, sessionId: string, ids: readonly string[]) =>
  db.any(threadApprovalRow`
    select ${approvalKind.columns}, t.status = 'pending' and t.expires_at > now() as is_open from approvals t
    where t.session_id = ${sessionId} and t.approver = 'end_user'
      and (t.status = 'pending' and t.expires_at > now() or t.id = any(${sql.array([...ids], 'text')}))
    order by t.id for update of t`)

const continuationRow = sql.type(
  z.object({
    status: z.string(),
    succeeded: z.boolean(),
    generation_id: z.string().nullable(),
    /** Whether the decision is still being followed up. */
    is_active: z.boolean(),
  }),
)

/** Returns the progress of the follow-up of a decided approval. By the primary keys. */
export const findContinuation = (db: Queryable, approvalId: string) =>
  db.one(continuationRow`
    select a.status, coalesce(a.execution ->> 'status' = 'succeeded', false) as succeeded,
      a.continuation_id as generation_id,
      exists (select 1 from approval_attempts f where f.approval_id = a.id) as is_active
    from approvals a where a.id = ${approvalId}`)

const keyRow = sql.type(z.object({ document_id: z.string(), idempotency_key: z.string() }))

/** Returns the client ids of messages, by document. */
export const listClientIds = async (db: Queryable, sessionId: string): Promise<ReadonlyMap<string, string>> =>
  new Map(
    (
      await db.any(keyRow`
        select m.document_id, m.idempotency_key from sessions s
        join conversation_messages m on m.conversation_id = s.conversation_id
        where s.id = ${sessionId} and m.idempotency_key is not null and m.operator_id is null`)
    ).map(({ document_id, idempotency_key }) => [document_id, idempotency_key]),
  )
