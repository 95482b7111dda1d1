import { z } from 'zod'
import { messageTextJoin } from '#content/documents/message-text.ts'
import { isoTime, type Queryable, sql } from '#core/db/sql.ts'
import { approvalKind } from '#execution/approvals/model.ts'
import { endUserOfApproval } from '#execution/approvals/store.ts'
import { messageOrigin } from '../dialog/messages/store.ts'
import { isShown } from './end-user.ts'

/** Messages of the session that are read, and characters of each. */
const MESSAGES = 6
const MESSAGE_LENGTH = 2000

const tags = z.record(z.string(), z.string()).nullable()
const json = z.record(z.string(), z.unknown())

/** Parts of the context of an approval as rows of their kinds. */
const contextColumns = {
  agent_row: z.object({ id: z.string(), project_id: z.string(), name: z.string().nullable() }).nullable(),
  actor_row: z
    .object({
      id: z.string(),
      project_id: z.string(),
      name: z.string(),
      external_id: z.string().nullable(),
      tags,
    })
    .nullable(),
  guardrail_row: z
    .object({
      id: z.string(),
      project_id: z.string(),
      name: z.string(),
      version: z.string(),
      document: json.nullable(),
    })
    .nullable(),
  tool_row: z
    .object({
      id: z.string(),
      project_id: z.string(),
      name: z.string(),
      type: z.string(),
      parameters: json.nullable(),
      preset_parameters: json.nullable(),
    })
    .nullable(),
  /** Tool that is defined in a binding of the agent. */
  inline_tool: json.nullable(),
  session_row: z.object({ id: z.string(), project_id: z.string(), tags }).nullable(),
  messages: z.array(
    z.object({
      role: z.enum(['user', 'assistant']),
      origin: z.enum(['end_user', 'agent', 'operator']),
      author_name: z.string().nullable(),
      content: z.string().nullable(),
      created_at: z.string(),
    }),
  ),
}

const contextRow = sql.type(approvalKind.row.extend(contextColumns))
export type ApprovalContextRow = z.output<typeof approvalKind.row> & z.output<z.ZodObject<typeof contextColumns>>

/** Rows of other projects, such as a shared agent, are not part of the context. */
const own = sql.fragment`c.project_id = t.project_id`

const inlineTool = sql.fragment`(
  select b.binding -> 'tool' from agent_versions v
    cross join lateral json_array_elements(
      case json_typeof(v.config -> 'tool_bindings') when 'array' then v.config -> 'tool_bindings' end) b (binding)
  where v.agent_id = t.agent_id and v.version = t.agent_version and t.proposed_action ->> 'tool_id' is null
    and b.binding -> 'tool' ->> 'name' = t.proposed_action ->> 'tool_name' limit 1)`

const latestMessages = sql.fragment`(
  select coalesce(json_agg(to_json(l) order by l.position), '[]') from (
    select m.role, ${messageOrigin} as origin, u.display_name as author_name, left(x.content, ${MESSAGE_LENGTH}) as content,
      ${isoTime(sql.fragment`m.created_at`)} as created_at, m.position
    from conversation_messages m ${messageTextJoin} left join users u on u.id = m.operator_id
    where m.conversation_id = s.conversation_id and ${isShown}
    order by m.position desc limit ${MESSAGES}) l)`

/**
 * Returns an approval with what a person needs for the decision, in one statement by primary keys, unique indexes of versions
 * and conversation_messages_position; null if it does not exist.
 */
export const findApprovalContext = (db: Queryable, id: string): Promise<ApprovalContextRow | null> =>
  db.maybeOne(contextRow`
    select ${approvalKind.columns},
      (select json_build_object('id', c.id, 'project_id', c.project_id, 'name', c.name)
        from agents c where c.id = t.agent_id and ${own}) as agent_row,
      (select json_build_object('id', c.id, 'project_id', c.project_id, 'name', c.name, 'external_id', c.external_id,
          'tags', c.tags)
        from actors c where ${own} and c.id = ${endUserOfApproval}) as actor_row,
      (select json_build_object('id', c.id, 'project_id', c.project_id, 'name', c.name,
          'version', split_part(t.policy_version, '@', 2), 'document', (
            select v.config -> 'document' from guardrail_versions v
            where v.guardrail_id = c.id and v.version::text = split_part(t.policy_version, '@', 2)))
        from guardrails c where c.id = split_part(t.policy_version, '@', 1) and ${own}) as guardrail_row,
      (select json_build_object('id', c.id, 'project_id', c.project_id, 'name', c.name, 'type', c.type,
          'parameters', c.parameters, 'preset_parameters', c.preset_parameters)
        from tools c where c.id = t.proposed_action ->> 'tool_id' and ${own}) as tool_row,
      ${inlineTool} as inline_tool,
      case when s.id is not null then json_build_object('id', s.id, 'project_id', s.project_id, 'tags', s.tags) end
        as session_row,
      ${latestMessages} as messages
    from approvals t left join sessions s on s.id = t.session_id and s.project_id = t.project_id
    where t.id = ${id}`)
