import { z } from 'zod'
import { referencesTo } from '#core/api/dependents.ts'
import { idStatement, type Queryable, sql, voidStatement } from '#core/db/sql.ts'
import { hasGuardrail } from '#identity/projects/guardrail-ids.ts'
import { type AgentRow, agentKind } from '../agents/model.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { type Evaluation, type EvaluationRow, type GuardrailRow, guardrailKind } from './model.ts'

/** Lists guardrails by id. Uses the primary key. */
export const listGuardrailsById = (db: Queryable, ids: readonly string[]): Promise<readonly GuardrailRow[]> =>
  db.any(guardrailKind.sql`
    select ${guardrailKind.columns} from guardrails t where t.id = any(${sql.array([...ids], 'text')})`)

/** Lists the guardrails of a project, oldest first (index guardrails_project). */
export const listProjectGuardrails = (db: Queryable, projectId: string): Promise<readonly GuardrailRow[]> =>
  db.any(guardrailKind.sql`
    select ${guardrailKind.columns} from guardrails t where t.project_id = ${projectId} order by t.id`)

const projectRow = sql.type(
  z.strictObject({ id: z.string(), guardrail_ids: z.array(z.string()), trace_content_mode: z.string() }),
)

/** Lists the guardrail settings of projects. Uses the primary key. */
export const listProjectGuardrailSettings = (db: Queryable, ids: readonly string[]) =>
  db.any(projectRow`
    select id, guardrail_ids, trace_content_mode from projects where id = any(${sql.array([...ids], 'text')})`)

const referenceRow = sql.type(z.strictObject({ type: z.string(), ids: z.array(z.string()) }))

/** Maximum number of ids of each kind in a refusal. */
const MAX_IDS = 100

/** Returns the ids of the resources that a guardrail is attached to, by kind. */
export async function findGuardrailAttachments(
  db: Queryable,
  id: string,
): Promise<Record<'tools' | 'agents' | 'projects', string[]>> {
  const rows = await db.any(referenceRow`
    select type, (array_agg(distinct id))[1:${MAX_IDS}::int] as ids
    from ${referencesTo(guardrailKind, id) ?? sql.fragment`(select '' as type, '' as id where false)`} as r group by type`)
  const of = (type: string) => rows.find(row => row.type === type)?.ids ?? []
  return { tools: of('tool'), agents: of('agent'), projects: of('project') }
}

/** Lists up to `limit` agents with the guardrail attached (index agents_guardrails). */
export const listAgentsWithGuardrail = (db: Queryable, id: string, limit: number): Promise<readonly AgentRow[]> =>
  db.any(agentKind.sql`
    select ${agentKind.columns} from agents t where ${hasGuardrail(id)} order by t.id limit ${limit}`)

/**
 * Lists tools with the guardrail attached and the `others` of its project. Uses tools_guardrails and the primary key.
 */
export const listToolsWithGuardrail = (
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

/** Evaluation to store. */
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
 * Inserts evaluations of existing projects, each id once, and returns the inserted ids. Uses arrays: the same rows as
 * one JSON text took the database a quarter longer. Ordered by id, which keeps index pages full.
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

/**
 * Erases the snapshots of evaluations made for turns and returns their number (index guardrail_evaluations_generation).
 */
export const eraseSnapshots = async (db: Queryable, generationIds: readonly string[]): Promise<number> =>
  (
    await db.query(voidStatement`
      update guardrail_evaluations set context_snapshot = '{}'
      where generation_id = any(${sql.array([...generationIds], 'text')})`)
  ).rowCount

/** Deletes evaluations older than `before` (index guardrail_evaluations_time). */
export const deleteEvaluations = async (db: Queryable, before: Date, limit: number): Promise<number> =>
  (
    await db.query(sql.type(z.strictObject({}))`
      delete from guardrail_evaluations where id in (
        select id from guardrail_evaluations where created_at < ${before.toISOString()}::timestamptz
        order by created_at limit ${limit})`)
  ).rowCount
