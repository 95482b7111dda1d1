import { messageTextJoin } from '../../content/documents/message.ts'
import type { RecordedFailure } from '../../core/api/errors.ts'
import { type Queryable, sql } from '../../core/db/sql.ts'

export type TurnKind = 'turn' | 'auto' | 'tool_outputs' | 'continuation'
export type TurnState = 'queued' | 'running' | 'done' | 'failed' | 'cancelled'

/** A turn in the mailbox of a conversation, with what its generation says. */
export type TurnRow = {
  conversation_id: string
  session_id: string | null
  seq: number
  kind: TurnKind
  generation_id: string
  trace_id: string
  agent_id: string
  generation_status: string
  /** What the generation was asked to end with. */
  abort: (RecordedFailure & { stop_reason: 'error' | 'cancelled' }) | null
  /** Who speaks. */
  actor_id: string | null
  not_before: string | null
  /** Not waiting for its time. */
  due: boolean
  /** Its project is paused. */
  paused: boolean
  state: TurnState
  seen_position: number | null
  created_at: string
  started_at: string | null
}

const columns = sql.fragment`t.conversation_id, c.session_id, t.seq, t.kind, t.generation_id, g.trace_id, g.agent_id,
  g.status as generation_status, g.abort, t.actor_id, t.not_before, (t.not_before is null or t.not_before <= clock_timestamp()) as due,
  p.paused_at is not null as paused,
  t.state, t.seen_position, t.created_at, t.started_at`
const tables = sql.fragment`conversation_turns t join conversations c on c.id = t.conversation_id
  join generations g on g.id = t.generation_id join projects p on p.id = c.project_id`

/** Adds a turn at the end, under the conversation's row lock; answers its seq. */
export const insertTurnRow = (
  db: Queryable,
  row: {
    conversation_id: string
    kind: TurnKind
    generation_id: string
    actor_id: string | null
    principal_type: string
    principal_id: string
    not_before: Date | null
  },
): Promise<number> =>
  db.oneFirst(sql.unsafe`
    insert into conversation_turns (conversation_id, seq, kind, generation_id, actor_id, principal_type, principal_id, not_before)
    select ${row.conversation_id}, coalesce(max(seq), 0) + 1, ${row.kind}, ${row.generation_id}, ${row.actor_id},
      ${row.principal_type}, ${row.principal_id}, ${row.not_before?.toISOString() ?? null}::timestamptz
    from conversation_turns where conversation_id = ${row.conversation_id}
    returning seq`) as Promise<number>

/** Turns that run or wait, in order, by conversation_turns_open. */
export const openTurns = (db: Queryable, conversationId: string): Promise<readonly TurnRow[]> =>
  db.any(sql.unsafe`
    select ${columns} from ${tables}
    where t.conversation_id = ${conversationId} and t.state in ('queued', 'running') order by t.seq`) as Promise<
    readonly TurnRow[]
  >

/** The turn that runs, else the lowest due one, else the one that is due next; by conversation_turns_open. */
export const nextTurn = (db: Queryable, conversationId: string): Promise<TurnRow | null> =>
  db.maybeOne(sql.unsafe`
    select ${columns} from ${tables}
    where t.conversation_id = ${conversationId} and t.state in ('queued', 'running')
    order by t.state = 'running' desc, due desc, case when t.not_before <= clock_timestamp() then null else t.not_before end nulls first, t.seq
    limit 1`) as Promise<TurnRow | null>

/** The turn of a generation that has not settled. */
export const openTurnOf = (db: Queryable, generationId: string): Promise<TurnRow | null> =>
  db.maybeOne(sql.unsafe`
    select ${columns} from ${tables}
    where t.generation_id = ${generationId} and t.state in ('queued', 'running') order by t.seq limit 1`) as Promise<TurnRow | null>

/** The actor that a turn speaks as, by conversation_turns_generation. */
export const speakerOf = (db: Queryable, generationId: string): Promise<string | null> =>
  db.maybeOneFirst(sql.unsafe`
    select actor_id from conversation_turns where generation_id = ${generationId} order by seq limit 1`) as Promise<
    string | null
  >

/** Marks a queued turn as running, or a running one that has not started as queued again. */
export const setTurnState = (
  db: Queryable,
  turn: { conversation_id: string; seq: number },
  state: 'queued' | 'running',
) =>
  db.query(sql.unsafe`
    update conversation_turns set state = ${state}, started_at = ${state === 'running' ? sql.fragment`now()` : sql.fragment`null`}
    where conversation_id = ${turn.conversation_id} and seq = ${turn.seq} and state in ('queued', 'running')`)

/** Ends turns of a conversation that have not ended. */
export const endTurns = (
  db: Queryable,
  conversationId: string,
  seqs: readonly number[],
  state: 'done' | 'failed' | 'cancelled',
) =>
  db.query(sql.unsafe`
    update conversation_turns set state = ${state}, settled_at = now()
    where conversation_id = ${conversationId} and seq = any(${sql.array([...seqs], 'int4')})
      and state in ('queued', 'running')`)

/** Moves a queued turn in time and to another principal. */
export const moveTurn = (
  db: Queryable,
  turn: { conversation_id: string; seq: number },
  to: { not_before: Date | null; principal_type: string; principal_id: string },
) =>
  db.query(sql.unsafe`
    update conversation_turns set not_before = ${to.not_before?.toISOString() ?? null}::timestamptz,
      principal_type = ${to.principal_type}, principal_id = ${to.principal_id}
    where conversation_id = ${turn.conversation_id} and seq = ${turn.seq}`)

/**
 * Conversations with a turn that could run, of projects that are not paused; by conversation_turns_open. `quietSeconds`
 * leaves out what a wake-up of its own has just been sent for.
 */
export const wakeableConversations = (
  db: Queryable,
  options: { quietSeconds: number; after: string; limit: number },
): Promise<readonly { conversation_id: string; project_id: string }[]> =>
  db.any(sql.unsafe`
    select distinct t.conversation_id, c.project_id
    from conversation_turns t join conversations c on c.id = t.conversation_id join projects p on p.id = c.project_id
    where t.state in ('queued', 'running') and t.conversation_id > ${options.after}
      and coalesce(t.started_at, t.not_before, t.created_at) <= now() - make_interval(secs => ${options.quietSeconds})
      and p.paused_at is null
    order by t.conversation_id limit ${options.limit}`) as Promise<
    readonly { conversation_id: string; project_id: string }[]
  >

/** What a turn's prompt is made of besides messages: the agent and the actors that it speaks as and to. */
export type PromptFacts = {
  agent_id: string | null
  max_context_messages: number | null
  actors: Record<string, { name: string; instructions: string | null }>
}

export const promptFacts = (
  db: Queryable,
  agentId: string,
  actorIds: readonly (string | null)[],
): Promise<PromptFacts> =>
  db.one(sql.unsafe`
    select a.id as agent_id, a.max_context_messages, (
      select coalesce(jsonb_object_agg(x.id, jsonb_build_object('name', x.name, 'instructions', x.instructions)), '{}')
      from actors x where x.id = any(${sql.array(
        actorIds.filter(id => id !== null),
        'text',
      )})) as actors
    from (select 1) one left join agents a on a.id = ${agentId}`) as Promise<PromptFacts>

/** A message as the model is to see it. */
export type SeenMessage = {
  document_id: string
  position: number
  role: 'user' | 'assistant'
  content: string | null
  metadata: Record<string, unknown> | null
  history: unknown
  actor_name: string | null
}

/**
 * The last `limit` messages (all when null) in order, and in the same statement the note on the turn of how far it
 * saw. Under the conversation's row lock, so that nothing comes in between.
 */
export const seeMessages = (
  db: Queryable,
  turn: { conversation_id: string; seq: number },
  limit: number | null,
): Promise<readonly SeenMessage[]> =>
  db.any(sql.unsafe`
    with seen as (
      select * from conversation_messages where conversation_id = ${turn.conversation_id}
      order by position desc limit ${limit}
    ), noted as (
      update conversation_turns set seen_position = (select max(position) from seen)
      where conversation_id = ${turn.conversation_id} and seq = ${turn.seq}
    )
    select m.document_id, m.position, m.role, x.content, m.metadata, m.history, a.name as actor_name
    from seen m ${messageTextJoin} left join actors a on a.id = m.actor_id
    order by m.position`) as Promise<readonly SeenMessage[]>
