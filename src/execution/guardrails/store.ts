import { z } from 'zod'
import { referencesTo } from '../../core/api/dependents.ts'
import { idStatement, type Queryable, sql, voidStatement } from '../../core/db/sql.ts'
import { hasGuardrail } from '../../identity/guardrail-ids.ts'
import { type AgentRow, agentKind } from '../agents/model.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { type Evaluation, type EvaluationRow, type GuardrailRow, guardrailKind } from './model.ts'

/** Guardrails by their ids. By the primary key. */
export const guardrailsOfIds = (db: Queryable, ids: readonly string[]): Promise<readonly GuardrailRow[]> =>
  db.any(guardrailKind.sql`
    select ${guardrailKind.columns} from guardrails t where t.id = any(${sql.array([...ids], 'text')})`)

/** The guardrails of a project, oldest first. By guardrails_project. */
export const guardrailsOf = (db: Queryable, projectId: string): Promise<readonly GuardrailRow[]> =>
  db.any(guardrailKind.sql`
    select ${guardrailKind.columns} from guardrails t where t.project_id = ${projectId} order by t.id`)

const project = sql.type(
  z.strictObject({ id: z.string(), guardrail_ids: z.array(z.string()), trace_content_mode: z.string() }),
)

/** What projects say of the calls in them. By the primary key. */
export const projectsOfIds = (db: Queryable, ids: readonly string[]) =>
  db.any(project`
    select id, guardrail_ids, trace_content_mode from projects where id = any(${sql.array([...ids], 'text')})`)

const reference = sql.type(z.strictObject({ type: z.string(), ids: z.array(z.string()) }))

/** Ids that a refusal names of one kind. */
const NAMED = 100

/** What a guardrail is attached to, by kind. */
export async function attachedTo(
  db: Queryable,
  id: string,
): Promise<Record<'tools' | 'agents' | 'projects', string[]>> {
  const rows = await db.any(reference`
    select type, (array_agg(distinct id))[1:${NAMED}::int] as ids
    from ${referencesTo(guardrailKind, id) ?? sql.fragment`(select '' as type, '' as id where false)`} as r group by type`)
  const of = (type: string) => rows.find(row => row.type === type)?.ids ?? []
  return { tools: of('tool'), agents: of('agent'), projects: of('project') }
}

/** Agents that have a guardrail attached, so many at most. By agents_guardrails. */
export const agentsGuardedBy = (db: Queryable, id: string, limit: number): Promise<readonly AgentRow[]> =>
  db.any(agentKind.sql`
    select ${agentKind.columns} from agents t where ${hasGuardrail(id)} order by t.id limit ${limit}`)

/** Tools that have a guardrail attached, and others of its project by their ids. By tools_guardrails and the primary key. */
export const toolsGuardedBy = (
  db: Queryable,
  { id, project_id }: Pick<GuardrailRow, 'id' | 'project_id'>,
  others: readonly string[],
  limit: number,
): Promise<readonly ToolRow[]> =>
  db.any(toolKind.sql`
    select ${toolKind.columns} from tools t
    where t.id in (
      select t.id from tools t where ${hasGuardrail(id)}
      union select unnest(${sql.array([...others], 'text')}))
      and t.project_id = ${project_id}
    order by t.id limit ${limit}`)

/** What is kept of one evaluation. */
export type EvaluationDraft = Evaluation & Pick<EvaluationRow, 'id' | 'project_id' | 'tool_id' | 'approval_id'>

const COLUMNS: readonly (readonly [keyof EvaluationRow & keyof EvaluationDraft, string])[] = [
  ['id', 'text'],
  ['project_id', 'text'],
  ['guardrail_id', 'text'],
  ['guardrail_version', 'int4'],
  ['scope', 'text'],
  ['tool_id', 'text'],
  ['tool', 'text'],
  ['action', 'text'],
  ['class', 'text'],
  ['decision', 'text'],
  ['guard_result', 'bool'],
  ['context_source', 'text'],
  ['context_snapshot', 'json'],
  ['agent_id', 'text'],
  ['orchestration_run_id', 'text'],
  ['generation_id', 'text'],
  ['approval_id', 'text'],
]

const columns = sql.join(
  COLUMNS.map(([name]) => sql.identifier([name])),
  sql.fragment`, `,
)

const valuesOf = (draft: EvaluationDraft) =>
  COLUMNS.map(([name, type]) => (type === 'json' ? JSON.stringify(draft[name]) : (draft[name] as string | null)))

/**
 * Adds evaluations of projects that there are, each id once; returns the ids of those that were added. In arrays: the same
 * rows as one JSON text took the database a quarter longer. In the order of their ids, which keeps the pages of indexes
 * full.
 */
export const insertEvaluations = (db: Queryable, drafts: readonly EvaluationDraft[]): Promise<readonly string[]> =>
  db.anyFirst(idStatement`
    with held as (
      select id from projects
      where id = any(${sql.array([...new Set(drafts.map(({ project_id }) => project_id))], 'text')}) for key share),
    -- The content of a turn may have been erased since; one that is being erased is waited for.
    erased as (
      select id from (
        select id, content_redacted_at from generations
        where id = any(${sql.array([...new Set(drafts.flatMap(({ generation_id }) => generation_id ?? []))], 'text')})
        order by id for key share) g
      where g.content_redacted_at is not null),
    given as (
      select * from ${sql.unnest(
        drafts.map(valuesOf),
        COLUMNS.map(([, type]) => type),
      )} as g (${columns}))
    insert into guardrail_evaluations (${columns})
    select id, project_id, guardrail_id, guardrail_version, scope, tool_id, tool, action, class, decision, guard_result,
      context_source, case when generation_id in (select id from erased) then '{}' else context_snapshot end, agent_id,
      orchestration_run_id, generation_id, approval_id
    from given where project_id in (select id from held) order by id
    on conflict (id) do nothing
    returning id`)

/** Erases what evaluations of calls of turns show of those. By guardrail_evaluations_generation. */
export const eraseSnapshots = async (db: Queryable, generationIds: readonly string[]): Promise<number> =>
  (
    await db.query(voidStatement`
      update guardrail_evaluations set context_snapshot = '{}'
      where generation_id = any(${sql.array([...generationIds], 'text')})`)
  ).rowCount

/** Deletes evaluations older than a time. By guardrail_evaluations_time. */
export const deleteEvaluations = async (db: Queryable, before: Date, limit: number): Promise<number> =>
  (
    await db.query(sql.type(z.strictObject({}))`
      delete from guardrail_evaluations where id in (
        select id from guardrail_evaluations where created_at < ${before.toISOString()}::timestamptz
        order by created_at limit ${limit})`)
  ).rowCount
