import { z } from 'zod'
import { messageTextJoin } from '../../content/documents/message-text.ts'
import { type Fragment, idStatement, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { AbortRequest, GENERATION_STATUSES } from '../../execution/generations/model.ts'
import { sessionHooks } from './hooks.ts'

const TurnKind = z.enum(['turn', 'auto', 'tool_outputs', 'continuation'])
const TurnState = z.enum(['queued', 'running', 'done', 'failed', 'cancelled'])
export type TurnState = z.output<typeof TurnState>

const place = {
  conversation_id: z.string(),
  session_id: z.string().nullable(),
  seq: z.int(),
  kind: TurnKind,
  /** What the generation was asked to end with. */
  abort: AbortRequest.nullable(),
  /** Who speaks. */
  actor_id: z.string().nullable(),
  not_before: z.string().nullable(),
  /** Not waiting for its time. */
  due: z.boolean(),
  /** Its project is paused. */
  paused: z.boolean(),
  state: TurnState,
  /** How often a turn of a chat was taken; those of agents count on their generation. */
  attempt: z.int(),
  seen_position: z.int().nullable(),
  created_at: z.string(),
  started_at: z.string().nullable(),
}

/** A turn in the mailbox of a conversation that an agent answers, with what its generation says. */
const AgentTurn = z.object({
  ...place,
  chat_id: z.null(),
  generation_id: z.string(),
  trace_id: z.string(),
  agent_id: z.string(),
  generation_status: z.enum(GENERATION_STATUSES),
})
export type AgentTurn = z.output<typeof AgentTurn>

/** One that a chat answers: it has no generation. */
const ChatTurn = z.object({
  ...place,
  chat_id: z.string(),
  generation_id: z.null(),
  trace_id: z.null(),
  agent_id: z.null(),
  generation_status: z.null(),
})
export type ChatTurn = z.output<typeof ChatTurn>

export type TurnRow = AgentTurn | ChatTurn
const turn = sql.type(z.union([AgentTurn, ChatTurn]))

const columns = sql.fragment`t.conversation_id, c.session_id, t.seq, t.kind, t.chat_id, t.generation_id, g.trace_id, g.agent_id,
  g.status as generation_status, g.abort, t.actor_id, t.not_before, (t.not_before is null or t.not_before <= clock_timestamp()) as due,
  p.paused_at is not null as paused,
  t.state, t.attempt, t.seen_position, t.created_at, t.started_at`
const tables = sql.fragment`conversation_turns t join conversations c on c.id = t.conversation_id
  left join generations g on g.id = t.generation_id join projects p on p.id = c.project_id`

type NewPlace = {
  conversation_id: string
  kind: TurnRow['kind']
  generation_id: string
  actor_id: string | null
  principal_type: string
  principal_id: string
  not_before: Date | null
}

/** Adds a turn at the end, as a part of the statement that makes its generation; under the conversation's row lock. */
export const mailboxTurnCte = (row: NewPlace): Fragment => sql.fragment`
  place as (${placeInsert(row)} having exists (select 1 from runnable))`

/** The same for a generation that there is already. */
export const insertMailboxTurn = (db: Queryable, row: NewPlace) => db.query(voidStatement`${placeInsert(row)}`)

const placeInsert = (row: NewPlace): Fragment => sql.fragment`
    insert into conversation_turns (conversation_id, seq, kind, generation_id, actor_id, principal_type, principal_id, not_before)
    select ${row.conversation_id}, coalesce(max(seq), 0) + 1, ${row.kind}, ${row.generation_id}, ${row.actor_id},
      ${row.principal_type}, ${row.principal_id}, ${row.not_before?.toISOString() ?? null}::timestamptz
    from conversation_turns where conversation_id = ${row.conversation_id}`

/** Whether an automatic turn waits in a conversation. By conversation_turns_open. */
export const hasQueuedAutoTurn = (conversationId: string): Fragment => sql.fragment`
  exists (select from conversation_turns
    where conversation_id = ${conversationId} and state = 'queued' and kind = 'auto')`

/** Turns that run or wait, in order, by conversation_turns_open. */
export const openTurns = (db: Queryable, conversationId: string): Promise<readonly TurnRow[]> =>
  db.any(turn`
    select ${columns} from ${tables}
    where t.conversation_id = ${conversationId} and t.state in ('queued', 'running') order by t.seq`)

/** The first of them, that which runs before all others. */
export const firstTurns = (db: Queryable, conversationId: string, limit: number): Promise<readonly TurnRow[]> =>
  db.any(turn`
    select ${columns} from ${tables}
    where t.conversation_id = ${conversationId} and t.state in ('queued', 'running')
    order by t.state = 'running' desc, t.seq limit ${limit}`)

/**
 * Turns of a conversation that was deleted which are not at their end. Reads generation_work, which has those that are not.
 */
export const turnsLeft = (db: Queryable, conversationId: string, limit: number): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select g.id from generation_work w join generations g on g.id = w.generation_id
    where g.conversation_id = ${conversationId} order by g.id limit ${limit}`)

/** The turn that runs, else the lowest due one, else the one that is due next; by conversation_turns_open. */
export const nextTurn = (db: Queryable, conversationId: string): Promise<TurnRow | null> =>
  db.maybeOne(turn`
    select ${columns} from ${tables}
    where t.conversation_id = ${conversationId} and t.state in ('queued', 'running')
    order by t.state = 'running' desc, due desc, case when t.not_before <= clock_timestamp() then null else t.not_before end nulls first, t.seq
    limit 1`)

/** Whether a turn `t` is the only one of its conversation that waits or runs. */
const alone = sql.fragment`not exists (
  select from conversation_turns o
  where o.conversation_id = t.conversation_id and o.state in ('queued', 'running') and o.seq <> t.seq) as alone`

const OpenTurn = AgentTurn.extend({ alone: z.boolean(), session: z.custom<object>().nullable() })
export type OpenTurn = z.output<typeof OpenTurn>
const openTurn = sql.type(OpenTurn)

/** The turn of a generation that has not settled, its session, and whether it is the only turn of its conversation. */
export const openTurnOf = (db: Queryable, generationId: string): Promise<OpenTurn | null> =>
  db.maybeOne(openTurn`
    select ${columns}, ${sessionHooks.only()?.json ?? sql.fragment`null::jsonb`} as session, ${alone}
    from ${tables}
    where t.generation_id = ${generationId} and t.state in ('queued', 'running') order by t.seq limit 1`)

const takenTurnRow = sql.type(ChatTurn.extend({ alone: z.boolean() }))

/** A turn of a chat as the worker that took it holds it; null when another took it since, or it was ended. */
export const findClaimedChatTurn = (
  db: Queryable,
  { conversation_id, seq, attempt }: Pick<TurnRow, 'conversation_id' | 'seq' | 'attempt'>,
) =>
  db.maybeOne(takenTurnRow`
    select ${columns}, ${alone} from ${tables}
    where t.conversation_id = ${conversation_id} and t.seq = ${seq} and t.state = 'running' and t.attempt = ${attempt}`)

const speaker = sql.type(AgentTurn.pick({ actor_id: true }))

/** The actor that a turn speaks as, by conversation_turns_generation. */
export const speakerOf = (db: Queryable, generationId: string): Promise<string | null> =>
  db.maybeOneFirst(speaker`
    select actor_id from conversation_turns where generation_id = ${generationId} order by seq limit 1`)

/** Marks a turn that goes on as running; its generation has been in progress since it was asked to. */
export const startTurn = (db: Queryable, { conversation_id, seq }: { conversation_id: string; seq: number }) =>
  db.query(voidStatement`
    update conversation_turns set state = 'running', started_at = now()
    where conversation_id = ${conversation_id} and seq = ${seq} and state = 'queued'`)

/** Marks a running turn that has not started as queued again. */
export const requeueTurn = (db: Queryable, { conversation_id, seq }: { conversation_id: string; seq: number }) =>
  db.query(voidStatement`
    update conversation_turns set state = 'queued', started_at = null
    where conversation_id = ${conversation_id} and seq = ${seq} and state = 'running'`)

/** The end of turns of a conversation that have not ended. */
export const endedTurns = (
  conversationId: string,
  seqs: readonly number[],
  state: 'done' | 'failed' | 'cancelled',
): Fragment => sql.fragment`
  update conversation_turns set state = ${state}, settled_at = now()
  where conversation_id = ${conversationId} and seq = any(${sql.array([...seqs], 'int4')})
    and state in ('queued', 'running')`

export const endTurns = (db: Queryable, ...which: Parameters<typeof endedTurns>) =>
  db.query(voidStatement`${endedTurns(...which)}`)

/** Moves a queued turn in time and to another principal. */
export const rescheduleTurn = (
  db: Queryable,
  { conversation_id, seq }: { conversation_id: string; seq: number },
  to: { not_before: Date | null; principal_type: string; principal_id: string },
) =>
  db.query(voidStatement`
    update conversation_turns set not_before = ${to.not_before?.toISOString() ?? null}::timestamptz,
      principal_type = ${to.principal_type}, principal_id = ${to.principal_id}
    where conversation_id = ${conversation_id} and seq = ${seq}`)

const wakeable = sql.type(z.object({ conversation_id: z.string(), project_id: z.string() }))

/**
 * Conversations with a turn that could run, of projects that are not paused; by conversation_turns_open. `quietSeconds`
 * leaves out what a wake-up of its own has just been sent for.
 */
export const wakeableConversations = (
  db: Queryable,
  options: { quietSeconds: number; after: string; limit: number },
): Promise<readonly { conversation_id: string; project_id: string }[]> =>
  db.any(wakeable`
    select distinct t.conversation_id, c.project_id
    from conversation_turns t join conversations c on c.id = t.conversation_id join projects p on p.id = c.project_id
    where t.state in ('queued', 'running') and t.conversation_id > ${options.after}
      and coalesce(t.started_at, t.not_before, t.created_at) <= now() - make_interval(secs => ${options.quietSeconds})
      and p.paused_at is null
    order by t.conversation_id limit ${options.limit}`)

/** Since when the oldest due turn of a conversation in which none runs waits for a worker. By conversation_turns_open. */
export const oldestQueuedTurn: Fragment = sql.fragment`(
  select min(coalesce(t.not_before, t.created_at))
  from conversation_turns t join conversations c on c.id = t.conversation_id join projects p on p.id = c.project_id
  where t.state = 'queued' and coalesce(t.not_before, t.created_at) <= now() and p.paused_at is null
    and not exists (select from conversation_turns r where r.conversation_id = t.conversation_id and r.state = 'running'))`

/** Conversations that were deleted and have turns which are not at their end. Reads generation_work, which has those. */
export const deletedConversations = (
  db: Queryable,
  limit: number,
): Promise<readonly { conversation_id: string; project_id: string }[]> =>
  db.any(wakeable`
    select distinct g.conversation_id, g.project_id
    from generation_work w join generations g on g.id = w.generation_id
    where g.conversation_id is not null and not exists (select from conversations c where c.id = g.conversation_id)
    limit ${limit}`)

/** A message as the model is to see it. */
const SeenMessage = z.object({
  role: z.enum(['user', 'assistant']),
  content: z.string().nullable(),
  metadata: z.record(z.string(), z.unknown()).nullable(),
  history: z.unknown(),
  actor_name: z.string().nullable(),
})
export type SeenMessage = z.output<typeof SeenMessage>

/** What a turn's prompt is made of: messages in order, and the actors that it speaks as and to. */
const PromptFacts = z.object({
  /** The agent or the chat; null when it is gone. */
  answers: z.string().nullable(),
  actors: z.record(z.string(), z.object({ name: z.string(), instructions: z.string().nullable() })),
  messages: z.array(SeenMessage),
})
export type PromptFacts = z.output<typeof PromptFacts>
const promptFacts = sql.type(PromptFacts)

/**
 * Marks a turn as running and reads what its prompt is made of: as many of the last messages as its agent takes. The turn
 * remembers how far it saw: one that runs already, since the worker that took it was lost, sees no more than that. Under the conversation's row lock, so that nothing comes in between. The messages come as json:
 * jsonb ends at 256 MB.
 * @param listenerId whom it speaks to
 */
export const startTurnWithPrompt = (
  db: Queryable,
  turn: Pick<TurnRow, 'conversation_id' | 'seq' | 'agent_id' | 'chat_id' | 'actor_id'>,
  listenerId: string | null,
): Promise<PromptFacts> => {
  const { conversation_id, seq, agent_id, chat_id, actor_id } = turn
  const answers =
    chat_id === null
      ? sql.fragment`select id, max_context_messages from agents where id = ${agent_id}`
      : sql.fragment`select id, null::integer as max_context_messages from chats where id = ${chat_id}`
  return db.one(promptFacts`
    with answers as (${answers}),
    seen as (
      select m.* from conversation_messages m
      join conversation_turns t on t.conversation_id = m.conversation_id and t.seq = ${seq}
      where m.conversation_id = ${conversation_id} and exists (select from answers)
        and (t.state = 'queued' or m.position <= t.seen_position)
      order by m.position desc limit (select max_context_messages from answers)
    ), taken as (
      update conversation_turns set state = 'running', started_at = now(),
        seen_position = case when state = 'queued' then (select max(position) from seen) else seen_position end,
        attempt = attempt + ${chat_id === null ? 0 : 1}
      where conversation_id = ${conversation_id} and seq = ${seq} and state in ('queued', 'running')
    )
    select (select id from answers) as answers,
      (select coalesce(jsonb_object_agg(x.id, jsonb_build_object('name', x.name, 'instructions', x.instructions)), '{}')
        from actors x where x.id in (${actor_id}, ${listenerId})) as actors,
      (select coalesce(json_agg(json_build_object('role', m.role, 'content', x.content, 'metadata', m.metadata,
          'history', m.history, 'actor_name', a.name) order by m.position), '[]')
        from seen m ${messageTextJoin} left join actors a on a.id = m.actor_id) as messages`)
}
