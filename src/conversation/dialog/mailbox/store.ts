import { z } from 'zod'
import { messageTextJoin } from '#content/documents/message-text.ts'
import { sessionJson } from '#conversation/sessions/settle-turn.ts'
import { allOf, type Fragment, idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { servedAgentOfTurn, turnJson } from '#execution/generations/loop/turn-store.ts'
import { AbortRequest, GENERATION_STATUSES } from '#execution/generations/model.ts'
import { startFrameCte } from '../messages/frames.ts'
import { conversationKind } from '../messages/model.ts'
import type { MessagePart } from '../messages/parts-model.ts'
import { isRefusedMessage } from '../messages/refused.ts'
import { areRowsUnchanged, lockedRowsCtes, MessagePlace, messagePlace } from '../messages/store.ts'
import { promptSummaryCtes } from '../summaries/store.ts'

const TurnKind = z.enum(['turn', 'auto', 'tool_outputs', 'continuation'])
const TurnState = z.enum(['queued', 'running', 'done', 'failed', 'cancelled'])
export type TurnState = z.output<typeof TurnState>

const mailboxFields = {
  project_id: z.string(),
  conversation_id: z.string(),
  session_id: z.string().nullable(),
  seq: z.int(),
  kind: TurnKind,
  /** Requested abort of the generation. */
  abort: AbortRequest.nullable(),
  /** The speaker. */
  actor_id: z.string().nullable(),
  not_before: z.string().nullable(),
  /** Whether `not_before` has passed. */
  due: z.boolean(),
  /** Whether its project is paused. */
  paused: z.boolean(),
  state: TurnState,
  /** Number of claims of a chat turn; turns of agents count on their generation. */
  attempt: z.int(),
  seen_position: z.int().nullable(),
  created_at: z.string(),
  started_at: z.string().nullable(),
}

/** A turn in a conversation's mailbox that an agent answers, with fields of its generation. */
const AgentTurn = z.object({
  ...mailboxFields,
  chat_id: z.null(),
  generation_id: z.string(),
  trace_id: z.string(),
  agent_id: z.string(),
  generation_status: z.enum(GENERATION_STATUSES),
})
export type AgentTurn = z.output<typeof AgentTurn>

/** A turn that a chat answers, without a generation. */
const ChatTurn = z.object({
  ...mailboxFields,
  chat_id: z.string(),
  generation_id: z.null(),
  trace_id: z.null(),
  agent_id: z.null(),
  generation_status: z.null(),
})
export type ChatTurn = z.output<typeof ChatTurn>

export type TurnRow = AgentTurn | ChatTurn
const turnRow = sql.type(z.union([AgentTurn, ChatTurn]))

const turnColumns = sql.fragment`t.conversation_id, c.project_id, c.session_id, t.seq, t.kind, t.chat_id, t.generation_id, g.trace_id, g.agent_id,
  g.status as generation_status, g.abort, t.actor_id, t.not_before, (t.not_before is null or t.not_before <= clock_timestamp()) as due,
  p.paused_at is not null as paused,
  t.state, t.attempt, t.seen_position, t.created_at, t.started_at`
const turnTables = sql.fragment`conversation_turns t join conversations c on c.id = t.conversation_id
  left join generations g on g.id = t.generation_id join projects p on p.id = c.project_id`

type NewMailboxTurn = {
  conversation_id: string
  kind: TurnRow['kind']
  generation_id: string
  actor_id: string | null
  principal_type: string
  principal_id: string
  not_before: Date | null
}

/**
 * Cte that appends a turn to a mailbox in the statement that inserts its generation. Requires the conversation's lock.
 */
export const mailboxTurnCte = (row: NewMailboxTurn): Fragment => sql.fragment`
  place as (${mailboxTurnInsert(row)} having exists (select 1 from runnable))`

/** Appends a turn with an existing generation to a mailbox. Requires the conversation's lock. */
export const insertMailboxTurn = (db: Queryable, row: NewMailboxTurn) =>
  db.query(voidStatement`${mailboxTurnInsert(row)}`)

const mailboxTurnInsert = (row: NewMailboxTurn): Fragment => sql.fragment`
    insert into conversation_turns (conversation_id, seq, kind, generation_id, actor_id, principal_type, principal_id, not_before)
    select ${row.conversation_id}, coalesce(max(seq), 0) + 1, ${row.kind}, ${row.generation_id}, ${row.actor_id},
      ${row.principal_type}, ${row.principal_id}, ${row.not_before?.toISOString() ?? null}::timestamptz
    from conversation_turns where conversation_id = ${row.conversation_id}`

/** Condition that an automatic turn is queued in a conversation. By conversation_turns_open. */
export const hasQueuedAutoTurn = (conversationId: string): Fragment => sql.fragment`
  exists (select from conversation_turns
    where conversation_id = ${conversationId} and state = 'queued' and kind = 'auto')`

/** Returns the queued and running turns in order. By conversation_turns_open. */
export const listOpenTurns = (db: Queryable, conversationId: string): Promise<readonly TurnRow[]> =>
  db.any(turnRow`
    select ${turnColumns} from ${turnTables}
    where t.conversation_id = ${conversationId} and t.state in ('queued', 'running') order by t.seq`)

/** Returns the first open turns, the running one before all others. */
export const listFirstTurns = (db: Queryable, conversationId: string, limit: number): Promise<readonly TurnRow[]> =>
  db.any(turnRow`
    select ${turnColumns} from ${turnTables}
    where t.conversation_id = ${conversationId} and t.state in ('queued', 'running')
    order by t.state = 'running' desc, t.seq limit ${limit}`)

/** Returns unsettled turns of a deleted conversation. Reads generation_work, which contains only unsettled turns. */
export const listOrphanedTurns = (db: Queryable, conversationId: string, limit: number): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    select g.id from generation_work w join generations g on g.id = w.generation_id
    where g.conversation_id = ${conversationId} order by g.id limit ${limit}`)

/** Condition that the queued turns of a conversation `c` wait for the handback of its session. */
const isHeld = sql.fragment`exists (
  select from sessions s where s.id = c.session_id and s.control = 'operator' and s.status = 'open')`

const heldColumn = { held: z.boolean() }
const nextTurnRow = sql.type(z.union([AgentTurn.extend(heldColumn), ChatTurn.extend(heldColumn)]))
/** A turn, and whether queued turns of its conversation wait for a handback. */
type NextTurn = TurnRow & { held: boolean }

/** Returns the running turn, else the lowest due one, else the one due next. By conversation_turns_open. */
export const findNextTurn = (db: Queryable, conversationId: string): Promise<NextTurn | null> =>
  db.maybeOne(nextTurnRow`${nextTurn(conversationId)}`)

const nextTurn = (conversationId: string): Fragment => sql.fragment`
    select ${turnColumns}, ${isHeld} as held from ${turnTables}
    where t.conversation_id = ${conversationId} and t.state in ('queued', 'running')
    order by t.state = 'running' desc, due desc, case when t.not_before <= clock_timestamp() then null else t.not_before end nulls first, t.seq
    limit 1`

/** Column that is true if a turn `t` is the only open one of its conversation. */
const alone = sql.fragment`not exists (
  select from conversation_turns o
  where o.conversation_id = t.conversation_id and o.state in ('queued', 'running') and o.seq <> t.seq) as alone`

const agentTurnRow = sql.type(AgentTurn)

/** Returns the open turn of a generation. */
export const findOpenTurn = (db: Queryable, generationId: string): Promise<AgentTurn | null> =>
  db.maybeOne(agentTurnRow`
    select ${turnColumns} from ${turnTables}
    where t.generation_id = ${generationId} and t.state in ('queued', 'running') order by t.seq limit 1`)

/** Column of the conversation `c` of a turn as jsonb (`rowFromJson`). */
const conversationJson = sql.fragment`(
  select to_jsonb(r) from (select ${conversationKind.columns} from conversations t where t.id = c.id) r) as conversation`

const SettlingTurn = AgentTurn.extend({
  ...MessagePlace.shape,
  /** Whether no other turn of the conversation is open. */
  alone: z.boolean(),
  /** Rows as jsonb (`rowFromJson`). */
  session: z.custom<object>().nullable(),
  conversation: z.custom<object>(),
  /** Whether the claim of the attempt is current. */
  owned: z.boolean(),
})
export type SettlingTurn = z.output<typeof SettlingTurn>
const settlingTurnRow = sql.type(SettlingTurn)

/**
 * Locks the generation of an open turn after its conversation, and returns the turn with all that its settlement depends on;
 * null if it is not open, or its conversation was deleted. By conversation_turns_generation and primary keys.
 */
export const lockSettlingTurn = (
  db: Queryable,
  { id, attempt }: { id: string; attempt: number },
): Promise<SettlingTurn | null> =>
  db.maybeOne(settlingTurnRow`
    select ${turnColumns}, ${sessionJson} as session, ${alone}, ${messagePlace(sql.fragment`c.id`)}, ${conversationJson},
      g.attempt = ${attempt} and g.status in ('pending', 'in_progress', 'requires_action') as owned
    from conversation_turns t join conversations c on c.id = t.conversation_id
      join generations g on g.id = t.generation_id join projects p on p.id = c.project_id
    where t.generation_id = ${id} and t.state in ('queued', 'running') order by t.seq limit 1 for no key update of g`)

const claimedChatTurnRow = sql.type(
  ChatTurn.extend({ ...MessagePlace.shape, alone: z.boolean(), conversation: z.custom<object>() }),
)

/**
 * Returns a claimed turn of a chat with all that its settlement depends on; null if the claim was lost or the turn has ended.
 * Requires the conversation's lock.
 */
export const findClaimedChatTurn = (
  db: Queryable,
  { conversation_id, seq, attempt }: Pick<TurnRow, 'conversation_id' | 'seq' | 'attempt'>,
) =>
  db.maybeOne(claimedChatTurnRow`
    select ${turnColumns}, ${alone}, ${messagePlace(conversation_id)}, ${conversationJson} from ${turnTables}
    where t.conversation_id = ${conversation_id} and t.seq = ${seq} and t.state = 'running' and t.attempt = ${attempt}`)

const speakerRow = sql.type(AgentTurn.pick({ actor_id: true }))

/** Returns the actor that a turn speaks as. By conversation_turns_generation. */
export const findSpeaker = (db: Queryable, generationId: string): Promise<string | null> =>
  db.maybeOneFirst(speakerRow`
    select actor_id from conversation_turns where generation_id = ${generationId} order by seq limit 1`)

/** Marks a resumed turn, whose generation is already in progress, as running. */
export const startTurn = (db: Queryable, { conversation_id, seq }: { conversation_id: string; seq: number }) =>
  db.query(voidStatement`
    update conversation_turns set state = 'running', started_at = now()
    where conversation_id = ${conversation_id} and seq = ${seq} and state = 'queued'`)

/** Returns a running turn that has not started to the queue. */
export const requeueTurn = (db: Queryable, { conversation_id, seq }: { conversation_id: string; seq: number }) =>
  db.query(voidStatement`
    update conversation_turns set state = 'queued', started_at = null
    where conversation_id = ${conversation_id} and seq = ${seq} and state = 'running'`)

/** Statement that ends open turns of a conversation. */
export const endedTurns = (
  conversationId: string,
  seqs: readonly number[],
  state: 'done' | 'failed' | 'cancelled',
): Fragment => sql.fragment`
  update conversation_turns set state = ${state}, settled_at = now()
  where conversation_id = ${conversationId} and seq = any(${sql.array([...seqs], 'int4')})
    and state in ('queued', 'running')`

/** Ends open turns of a conversation. */
export const endTurns = (db: Queryable, ...args: Parameters<typeof endedTurns>) =>
  db.query(voidStatement`${endedTurns(...args)}`)

/** Changes the earliest start and the principal of a queued turn. */
export const rescheduleTurn = (
  db: Queryable,
  { conversation_id, seq }: { conversation_id: string; seq: number },
  to: { not_before: Date | null; principal_type: string; principal_id: string },
) =>
  db.query(voidStatement`
    update conversation_turns set not_before = ${to.not_before?.toISOString() ?? null}::timestamptz,
      principal_type = ${to.principal_type}, principal_id = ${to.principal_id}
    where conversation_id = ${conversation_id} and seq = ${seq}`)

const conversationRefRow = sql.type(z.object({ conversation_id: z.string(), project_id: z.string() }))

/**
 * Returns conversations with a running turn, or with a due turn that does not wait for a handback, of projects that are not
 * paused. By conversation_turns_open.
 * `quietSeconds` excludes turns whose own wake-up was just sent.
 */
export const listWakeableConversations = (
  db: Queryable,
  options: { quietSeconds: number; after: string; limit: number },
): Promise<readonly { conversation_id: string; project_id: string }[]> =>
  db.any(conversationRefRow`
    select distinct t.conversation_id, c.project_id
    from conversation_turns t join conversations c on c.id = t.conversation_id join projects p on p.id = c.project_id
    where t.state in ('queued', 'running') and t.conversation_id > ${options.after}
      and coalesce(t.started_at, t.not_before, t.created_at) <= now() - make_interval(secs => ${options.quietSeconds})
      and p.paused_at is null and (t.state = 'running' or not ${isHeld})
    order by t.conversation_id limit ${options.limit}`)

/**
 * Expression for the due time of the oldest due turn of conversations without a running turn that do not wait for a
 * handback. By conversation_turns_open.
 */
export const oldestQueuedTurn: Fragment = sql.fragment`(
  select min(coalesce(t.not_before, t.created_at))
  from conversation_turns t join conversations c on c.id = t.conversation_id join projects p on p.id = c.project_id
  where t.state = 'queued' and coalesce(t.not_before, t.created_at) <= now() and p.paused_at is null
    and not ${isHeld}
    and not exists (select from conversation_turns r where r.conversation_id = t.conversation_id and r.state = 'running'))`

/** Returns deleted conversations with unsettled turns. Reads generation_work, which contains only unsettled turns. */
export const listDeletedConversations = (
  db: Queryable,
  limit: number,
): Promise<readonly { conversation_id: string; project_id: string }[]> =>
  db.any(conversationRefRow`
    select distinct g.conversation_id, g.project_id
    from generation_work w join generations g on g.id = w.generation_id
    where g.conversation_id is not null and not exists (select from conversations c where c.id = g.conversation_id)
    limit ${limit}`)

/** A message as input of a prompt. */
const SeenMessage = z.object({
  role: z.enum(['user', 'assistant']),
  content: z.string().nullable(),
  metadata: z.record(z.string(), z.unknown()).nullable(),
  history: z.unknown(),
  refused: z.boolean(),
  /** The author: of a reply an agent, the actor as which it spoke, or both. */
  agent_id: z.string().nullable(),
  actor_id: z.string().nullable(),
  actor_name: z.string().nullable(),
  /** Set if the author is not the agent that answers; null if it was deleted. */
  agent_name: z.string().nullable(),
  /** Whether the platform wrote it. */
  note: z.boolean(),
  document_id: z.string(),
  parts: z.custom<MessagePart[]>().nullable(),
  /** Descriptions of files, by file ID. */
  descriptions: z.record(z.string(), z.string()).nullable(),
  /** Texts of the documents in the parts that exist, by ID. */
  texts: z.record(z.string(), z.string()).nullable(),
})
export type SeenMessage = z.output<typeof SeenMessage>

/** Input of a turn's prompt: messages in order, and the speaking and the listening actor. */
const PromptFacts = z.object({
  /** Id of the agent or chat; null if it was deleted. */
  answers: z.string().nullable(),
  actors: z.record(z.string(), z.object({ name: z.string(), instructions: z.string().nullable() })),
  messages: z.array(SeenMessage),
  /** Summary of the messages before them; null without one. */
  summary: z.string().nullable(),
  /** Turn of an agent (`turnFromJson`). */
  loaded: z.custom<object>().nullable(),
})
export type PromptFacts = z.output<typeof PromptFacts>
const promptFactsRow = sql.type(PromptFacts)

/** Expression for the texts of the documents in the parts of a message `m`, by ID. By the primary keys. */
const documentTexts = sql.fragment`case when m.parts @> '[{"type": "document"}]' then (
  select json_object_agg(pd.id, px.content) from documents pd join document_texts px on px.document_id = pd.id
  where pd.status <> 'withdrawn' and pd.id in (select part ->> 'document_id' from jsonb_array_elements(m.parts) as e (part))) end`

/** Ctes of the agent that serves a turn (`served`) and of its settings for prompts (`answers`). */
const answeringAgent = (generationId: string | Fragment): Fragment => sql.fragment`
    served as materialized (select a.* from generations t, ${servedAgentOfTurn} a where t.id = ${generationId}),
    answers as (
      select a.id, a.max_context_messages, case when g.content_mode = 'full' then a.context_policy end as policy
      from served a, generations g where g.id = ${generationId})`

/** Cte of the messages of a prompt: the last ones up to the agent's limit, without those that a summary stands for. */
const seenMessages = (
  conversationId: string,
  from: { joins?: Fragment; readable?: Fragment },
): Fragment => sql.fragment`
    seen as (
      select m.* from conversation_messages m ${from.joins ?? sql.fragment``}
      where ${allOf([
        sql.fragment`m.conversation_id = ${conversationId} and exists (select from answers)`,
        from.readable,
        sql.fragment`m.position > coalesce((select position from covered), -1)`,
      ])}
      order by m.position desc limit (select max_context_messages from answers))`

/** Columns of `PromptFacts`. The messages are json, because jsonb is limited to 256 MB. */
const promptColumns = (turn: {
  loaded: Fragment
  agentId: Fragment
  /** IDs of the speaking and the listening actor. */
  actorIds: Fragment
}): Fragment => sql.fragment`
    ${turn.loaded} as loaded,
      (select id from answers) as answers, (select nullif(text, '') from summary) as summary,
      (select coalesce(jsonb_object_agg(x.id, jsonb_build_object('name', x.name, 'instructions', x.instructions)), '{}')
        from actors x where x.id in (${turn.actorIds})) as actors,
      (select coalesce(json_agg(json_build_object('role', m.role, 'content', x.content, 'metadata', m.metadata,
          'history', m.history, 'refused', ${isRefusedMessage}, 'agent_id', m.agent_id, 'actor_id', m.actor_id, 'actor_name', a.name,
          'agent_name', case when m.agent_id <> coalesce(${turn.agentId}, '') then (select name from agents where id = m.agent_id) end, 'note', m.note, 'document_id', m.document_id, 'parts', m.parts,
          'descriptions', m.media_descriptions, 'texts', ${documentTexts}) order by m.position), '[]')
        from seen m ${messageTextJoin} left join actors a on a.id = m.actor_id) as messages`

/**
 * Marks a turn as running and reads the input of its prompt: the last messages up to the agent's limit, without those that
 * a summary stands for. The turn stores the last position it has seen, and a later attempt reads no further. Requires the
 * conversation's lock, so that no message is added in between. Also loads a turn of an agent, whose served version it reads
 * anyway.
 * @param listenerId the actor that the turn speaks to
 */
export const startTurnWithPrompt = (
  db: Queryable,
  turn: Pick<TurnRow, 'conversation_id' | 'seq' | 'generation_id' | 'chat_id' | 'agent_id' | 'actor_id'>,
  listenerId: string | null,
): Promise<PromptFacts> => {
  const { conversation_id, seq, generation_id, chat_id, agent_id, actor_id } = turn
  const answers =
    generation_id !== null
      ? answeringAgent(generation_id)
      : sql.fragment`
          answers as (
            select id, null::integer as max_context_messages, null::jsonb as policy from chats where id = ${chat_id})`
  return db.one(promptFactsRow`
    with ${answers},
    ${promptSummaryCtes(conversation_id, sql.fragment`(select policy from answers)`)},
    ${seenMessages(conversation_id, {
      joins: sql.fragment`join conversation_turns t on t.conversation_id = m.conversation_id and t.seq = ${seq}`,
      readable: sql.fragment`(t.state = 'queued' or m.position <= t.seen_position)`,
    })}, taken as (
      update conversation_turns set state = 'running', started_at = now(),
        seen_position = case when state = 'queued' then (select max(position) from seen) else seen_position end,
        attempt = attempt + ${chat_id === null ? 0 : 1}
      where conversation_id = ${conversation_id} and seq = ${seq} and state in ('queued', 'running')
    )
    select ${promptColumns({
      loaded: generation_id === null ? sql.fragment`null::json` : turnJson(generation_id, sql.fragment`served`),
      agentId: sql.fragment`${agent_id}`,
      actorIds: sql.fragment`${actor_id}, ${listenerId}`,
    })}`)
}

const TakenTurn = AgentTurn.extend({
  ...heldColumn,
  ...PromptFacts.shape,
  /** Rows as jsonb (`rowFromJson`). */
  conversation: z.custom<object>(),
  session: z.custom<object>().nullable(),
  taken_at: z.string(),
})
export type TakenTurn = z.output<typeof TakenTurn>
const takenTurnRow = sql.type(TakenTurn)

/**
 * Takes the next turn of a mailbox in one statement, with its prompt, if it is an agent's and starts now; null otherwise,
 * and if the conversation or its session changed while their locks were awaited: a message stored meanwhile would be missing in
 * the prompt. Messages change the conversation's row; what keeps a turn from starting changes its own row or the session's. By
 * conversation_turns_open and primary keys.
 */
export const takeStartingTurn = (db: Queryable, conversationId: string): Promise<TakenTurn | null> =>
  db.maybeOne(takenTurnRow`
    with ${lockedRowsCtes(conversationId)}, starting as materialized (
      select n.* from (${nextTurn(conversationId)}) n
      where n.chat_id is null and n.state = 'queued' and n.generation_status = 'pending' and n.due and not n.held and not n.paused
        and ${areRowsUnchanged(conversationId)}
    ), ${answeringAgent(sql.fragment`(select generation_id from starting)`)},
    ${promptSummaryCtes(conversationId, sql.fragment`(select policy from answers)`)},
    ${seenMessages(conversationId, {})}, taken as (
      update conversation_turns t set state = 'running', started_at = now(), seen_position = (select max(position) from seen)
      from starting n where t.conversation_id = ${conversationId} and t.seq = n.seq and t.state = 'queued'
      returning t.started_at
    ), ${startFrameCte}
    select n.*, to_jsonb(c) - 'version' as conversation, ${sessionJson} as session, taken.started_at as taken_at,
    ${promptColumns({
      loaded: turnJson(sql.fragment`(select generation_id from starting)`, sql.fragment`served`),
      agentId: sql.fragment`n.agent_id`,
      actorIds: sql.fragment`n.actor_id, c.actor_id`,
    })}
    from starting n, taken, conversation c`)
